//! Checks of several sequences at once, on whatever device an engine runs them.

use kiln::{DType, Engine};
use kiln_llm::{
    Error, Finish, Made, Model, Sampler, SequenceId, SequenceOptions, Sequences, SequencesOptions, Session,
    SessionOptions,
};

use super::random_model::{Kind, LLAMA, RandomModel, VOCABULARY};

/// Prompts of different lengths: the first two and the last two begin with the same tokens, one is a single token, and one has more
/// tokens than are copied at once, unless that is more than `longest`.
fn prompts(longest: u32) -> Vec<Vec<u32>> {
    let of = |seed: u32, length: u32| (0..length).map(|i| (i * seed + i / 3) % VOCABULARY as u32).collect::<Vec<_>>();
    let mut prompts: Vec<Vec<u32>> = [(7, 5), (7, 9), (5, 1), (11, longest.min(300)), (3, 8), (1, 2), (2, 20)]
        .into_iter()
        .map(|(seed, length)| of(seed, length))
        .collect();
    prompts.push([&prompts[6][..15], &[4, 4]].concat());
    prompts
}

fn load<'e>(engine: &'e Engine, kind: Kind, name: &str) -> Model<'e> {
    let path = RandomModel::new(kind).save(name);
    // Read into memory, so that the file can be deleted.
    let model = Model::from_gguf(engine, kiln_gguf::Model::read(&path).unwrap()).unwrap();
    std::fs::remove_file(path).unwrap();
    model
}

/// Tokens that a sequence has room for, and that it makes in a round.
const ROOM: usize = 340;
const TOKENS: usize = 8;

fn options(most: usize, cache: DType) -> SequencesOptions {
    SequencesOptions { most, context: Some(ROOM), cache }
}

fn session<'m>(model: &'m Model<'m>, cache: DType) -> Session<'m> {
    model.session(SessionOptions { context: Some(ROOM), cache }).unwrap()
}

/// What follows a prompt in a session, which has nothing else.
fn alone(session: &mut Session<'_>, prompt: &[u32], sampler: &Sampler, count: usize) -> Vec<u32> {
    session.truncate(0);
    session.push(prompt).unwrap();
    (0..count).map(|_| session.sample(sampler).unwrap()).collect()
}

/// How a sequence draws that goes on, whatever its tokens are.
fn going_on(sampler: Sampler, most: usize) -> SequenceOptions {
    SequenceOptions { sampler, most, ignore_end: true }
}

/// The tokens of a sequence among those of some steps.
fn of(made: &[Made], sequence: SequenceId) -> Vec<u32> {
    made.iter().filter(|made| made.sequence == sequence).map(|made| made.token).collect()
}

/// The samplers of the prompts: the likeliest token, candidates that a device finds, and what needs all logits.
fn samplers(round: usize) -> Vec<Sampler> {
    let drawn = |seed| Sampler { temperature: 1.5, top_k: 5, seed, ..Sampler::default() };
    let all = |seed| Sampler { top_k: 0, min_p: 0.01, repeat_penalty: 1.3, seed, ..Sampler::default() };
    (0..8)
        .map(|i| match (round, i % 3) {
            (0, _) => Sampler::greedy(),
            (1, _) => drawn(i),
            (2, 0) | (_, 1) => drawn(i),
            (2, _) | (_, 0) => Sampler::greedy(),
            _ => all(i),
        })
        .collect()
}

/// That sequences in a batch get the tokens that each gets alone, whatever their samplers need: of models of these kinds, with caches of
/// these types, in rounds of one kind of samplers (0, 1) or several (2, 3), of as many rows as places (0, 2) or fewer.
pub(crate) fn together_is_as_alone(engine: &Engine, kinds: &[(Kind, DType, &[usize])], longest: u32) {
    for (number, &(kind, cache, rounds)) in kinds.iter().enumerate() {
        let model = load(engine, kind, &format!("several-{number}"));
        let (prompts, mut session) = (prompts(longest), session(&model, cache));
        for &round in rounds {
            let samplers = samplers(round);
            // Rounds with as many rows as slots, and with fewer.
            let mut sequences = model.sequences(options(if round % 2 == 0 { 8 } else { 11 }, cache)).unwrap();
            let ids: Vec<SequenceId> = prompts
                .iter()
                .zip(&samplers)
                .map(|(prompt, sampler)| sequences.add(prompt, going_on(sampler.clone(), TOKENS)).unwrap())
                .collect();
            let made: Vec<Made> = sequences.steps().map(Result::unwrap).collect();
            assert_eq!((made.len(), sequences.len()), (8 * TOKENS, 0));
            for ((&id, prompt), sampler) in ids.iter().zip(&prompts).zip(&samplers) {
                let expected = alone(&mut session, prompt, sampler, TOKENS);
                assert_eq!(of(&made, id), expected, "{} {cache}, round {round}, {} tokens", kind.name, prompt.len());
            }
        }
    }
}

/// That sequences come and go while others go on, and forks go their own ways.
pub(crate) fn sequences_come_and_go(engine: &Engine, longest: u32) {
    let (model, cache) = (load(engine, LLAMA, "come-and-go"), DType::F16);
    let prompts = prompts(longest);
    let greedy = |most| going_on(Sampler::greedy(), most);
    let mut session = session(&model, cache);
    let mut expected = |prompt: &[u32], count: usize| alone(&mut session, prompt, &Sampler::greedy(), count);
    let mut sequences = model.sequences(options(3, cache)).unwrap();
    assert!(sequences.step().unwrap().is_empty(), "nothing to follow");
    let mut waiting = prompts.iter().enumerate();
    let (mut made, mut known) = (Vec::new(), Vec::new());
    // Each prompt gets a slot as soon as one is free; their lengths differ, so slots are freed in another order.
    loop {
        while sequences.room() > 0 {
            let Some((i, prompt)) = waiting.next() else { break };
            known.push((sequences.add(prompt, greedy(2 + i)).unwrap(), prompt, 2 + i));
        }
        if sequences.is_empty() {
            break;
        }
        made.extend(sequences.step().unwrap());
    }
    assert_eq!(known.len(), prompts.len());
    for (id, prompt, count) in &known {
        assert_eq!(of(&made, *id), expected(prompt, *count), "{} tokens", prompt.len());
        let finished = made.iter().filter(|made| made.sequence == *id && made.finish.is_some()).count();
        assert_eq!((finished, sequences.tokens(*id)), (1, None));
    }
    // A fork continues like its origin, or differently, and outlives it.
    let origin = sequences.add(&prompts[3], greedy(99)).unwrap();
    made = (0..3).flat_map(|_| sequences.step().unwrap()).collect();
    let drawn = Sampler { temperature: 2.0, seed: 8, ..Sampler::default() };
    let same = sequences.fork(origin, greedy(4)).unwrap();
    let other = sequences.fork(origin, going_on(drawn.clone(), 4)).unwrap();
    let before = sequences.tokens(origin).unwrap().to_vec();
    assert_eq!(before, [&prompts[3][..], &of(&made, origin)].concat());
    assert!(matches!(sequences.fork(origin, greedy(1)), Err(Error::SequencesFull { most: 3 })));
    made = sequences.step().unwrap();
    assert_eq!(sequences.remove(origin).unwrap(), [&before[..], &of(&made, origin)].concat());
    made.extend(sequences.steps().map(Result::unwrap));
    assert_eq!(of(&made, same), expected(&before, 4));
    assert_eq!(of(&made, other), alone(&mut session, &before, &drawn, 4));
    // The first byte of a character is the fork's, too.
    let forced = |token| going_on(Sampler { logit_bias: vec![(token, 1e9)], ..Sampler::greedy() }, 2);
    let first = sequences.add(&prompts[0], forced(3)).unwrap();
    assert_eq!(sequences.step().unwrap()[0].text, "");
    let fork = sequences.fork(first, forced(4)).unwrap();
    let made = sequences.step().unwrap();
    assert_eq!(made.iter().find(|made| made.sequence == fork).unwrap().text, "\u{e4}");
    sequences.remove(fork).unwrap();
    for unknown in [origin, same] {
        assert!(matches!(sequences.remove(unknown), Err(Error::UnknownSequence { sequence }) if sequence == unknown));
        assert!(matches!(sequences.fork(unknown, greedy(1)), Err(Error::UnknownSequence { .. })));
    }
}

/// That the next step of greedy sequences is begun ahead if the engine `begins` steps: one that is added then waits for the step after it.
pub(crate) fn greedy_steps_begin_ahead(engine: &Engine, begins: bool) {
    let (model, cache) = (load(engine, LLAMA, "ahead"), DType::F16);
    let greedy = || going_on(Sampler::greedy(), 6);
    let mut sequences = model.sequences(options(3, cache)).unwrap();
    let first = sequences.add(&[1, 6], greedy()).unwrap();
    let mut made = sequences.step().unwrap();
    let second = sequences.add(&[2, 7, 5], greedy()).unwrap();
    let mut step = |sequences: &mut Sequences<'_>| {
        let new = sequences.step().unwrap();
        let ids: Vec<SequenceId> = new.iter().map(|made| made.sequence).collect();
        made.extend(new);
        ids
    };
    assert_eq!(step(&mut sequences), if begins { vec![first] } else { vec![first, second] });
    assert_eq!(step(&mut sequences), [first, second]);
    // A drawn token is not begun, nor is the step after it.
    let drawn = Sampler { temperature: 1.5, seed: 3, ..Sampler::default() };
    let third = sequences.add(&[4], going_on(drawn.clone(), 2)).unwrap();
    assert_eq!(step(&mut sequences), if begins { vec![first, second] } else { vec![first, second, third] });
    while !sequences.is_empty() {
        step(&mut sequences);
    }
    let mut session = session(&model, cache);
    for (id, prompt, sampler, count) in [
        (first, &[1, 6][..], Sampler::greedy(), 6),
        (second, &[2, 7, 5], Sampler::greedy(), 6),
        (third, &[4], drawn, 2),
    ] {
        assert_eq!(of(&made, id), alone(&mut session, prompt, &sampler, count), "{} tokens", prompt.len());
    }
}

/// That sequences may leave, and others take their places, while a step for them is under way.
pub(crate) fn steps_outlive_their_sequences(engine: &Engine) {
    let (model, cache) = (load(engine, LLAMA, "outlive"), DType::F16);
    let prompts = prompts(40);
    let mut session = session(&model, cache);
    // With fewer rows than places, and with as many.
    for most in [8, 4] {
        let mut sequences = model.sequences(options(most, cache)).unwrap();
        let greedy = |most| going_on(Sampler::greedy(), most);
        let add = |sequences: &mut Sequences<'_>, at: usize, most: usize| {
            (sequences.add(&prompts[at], greedy(most)).unwrap(), at)
        };
        let mut known: Vec<(SequenceId, usize)> = (0..4).map(|at| add(&mut sequences, at, 12)).collect();
        let mut made: Vec<Made> = (0..2).flat_map(|_| sequences.step().unwrap()).collect();
        sequences.remove(known[1].0).unwrap();
        let three = [known[0].0, known[2].0, known[3].0];
        for _ in 0..2 {
            let new = sequences.step().unwrap();
            assert_eq!(new.iter().map(|made| made.sequence).collect::<Vec<_>>(), three, "{most} places");
            made.extend(new);
        }
        sequences.remove(known[3].0).unwrap();
        // A longer and a shorter prompt than those that had the places.
        known.extend([(6, 5), (5, 7)].map(|(at, most)| add(&mut sequences, at, most)));
        made.extend(sequences.steps().map(Result::unwrap));
        for (number, (id, at)) in known.into_iter().enumerate() {
            let count = [12, 2, 12, 4, 5, 7][number];
            let expected = alone(&mut session, &prompts[at], &Sampler::greedy(), count);
            assert_eq!(of(&made, id), expected, "{most} places, sequence {number}");
        }
    }
}

/// That sequences end for the reasons that there are, and what is wrong with one is said of it and changes nothing.
pub(crate) fn sequences_end_and_errors_name_them(engine: &Engine) {
    let model = load(engine, LLAMA, "ends");
    let mut sequences = model.sequences(SequencesOptions { most: 4, context: Some(9), cache: DType::F32 }).unwrap();
    // Only the token that ends a text is allowed, then only another one.
    let only = |only: u32| {
        let others = (0..VOCABULARY as u32).filter(|&token| token != only);
        let logit_bias = others.map(|token| (token, f32::NEG_INFINITY)).collect();
        Sampler { logit_bias, ..Sampler::default() }
    };
    let end = model.tokenizer().ends().next().unwrap();
    let with = |sampler: Sampler, most: usize| SequenceOptions { sampler, most, ignore_end: false };
    let ends = sequences.add(&[1, 6], with(only(end), 9)).unwrap();
    let goes_on = sequences.add(&[1, 6], going_on(only(end), 2)).unwrap();
    let fills = sequences.add(&[1, 6, 7, 8, 9, 10, 11], with(only(9), 99)).unwrap();
    let made: Vec<Made> = sequences.steps().map(Result::unwrap).collect();
    let finish = |id| made.iter().filter(|made| made.sequence == id).map(|made| made.finish).collect::<Vec<_>>();
    assert_eq!(finish(ends), [Some(Finish::End)]);
    assert_eq!(finish(goes_on), [None, Some(Finish::Most)]);
    assert_eq!(finish(fills), [None, Some(Finish::Context)]);
    let text = |id| made.iter().filter(|made| made.sequence == id).map(|made| &*made.text).collect::<String>();
    assert_eq!([text(ends), text(fills)], ["", " ab ab"]);
    // Nothing is added after an error.
    let options = |most| going_on(Sampler::greedy(), most);
    let wrong = Sampler { top_p: 0.0, ..Sampler::default() };
    assert!(matches!(sequences.add(&[], options(1)), Err(Error::Model { .. })));
    assert!(matches!(sequences.add(&[1], options(0)), Err(Error::Model { .. })));
    assert!(matches!(sequences.add(&[1, 99], options(1)), Err(Error::Token { token: 99, .. })));
    assert!(matches!(sequences.add(&[99], options(1)), Err(Error::Token { token: 99, .. })));
    assert!(matches!(sequences.add(&[1; 9], options(1)), Err(Error::ContextFull { context: 9, asked: 10 })));
    assert!(matches!(sequences.add(&[1], with(wrong, 1)), Err(Error::Sampler { parameter: "top_p", .. })));
    assert!(sequences.is_empty());
    let forbidden =
        Sampler { logit_bias: (0..VOCABULARY as u32).map(|t| (t, f32::NEG_INFINITY)).collect(), ..Sampler::default() };
    let good = sequences.add(&[1, 6], options(5)).unwrap();
    let bad = sequences.add(&[1, 6], going_on(forbidden, 5)).unwrap();
    for _ in 0..2 {
        let failed = sequences.step();
        assert!(
            matches!(&failed, Err(Error::Sequence { sequence, source })
                if *sequence == bad && matches!(**source, Error::Sampler { parameter: "logit_bias", .. })),
            "{failed:?}"
        );
        assert_eq!(sequences.tokens(good), Some(&[1, 6][..]));
    }
    sequences.remove(bad).unwrap();
    let made: Vec<Made> = sequences.steps().map(Result::unwrap).collect();
    let expected = alone(&mut session(&model, DType::F32), &[1, 6], &Sampler::greedy(), 5);
    assert_eq!(of(&made, good), expected);
    for most in [0, 65] {
        let refused = model.sequences(SequencesOptions { most, ..SequencesOptions::default() });
        assert!(matches!(refused, Err(Error::Model { .. })), "{most}");
    }
    // Weights that are not numbers, for samplers with all kinds of needs.
    let mut random = RandomModel::new(LLAMA);
    let down = random.tensors.iter_mut().find(|(name, ..)| name == "blk.1.ffn_down.weight").unwrap();
    down.2[5] = f32::NAN;
    let path = random.save("several-nan");
    let model = Model::from_gguf(engine, kiln_gguf::Model::read(&path).unwrap()).unwrap();
    std::fs::remove_file(path).unwrap();
    let needs_all = Sampler { top_k: 0, ..Sampler::default() };
    for sampler in [Sampler::greedy(), Sampler::default(), needs_all] {
        let mut sequences: Sequences<'_> = model.sequences(options_of_two()).unwrap();
        let first = sequences.add(&[1, 6], going_on(sampler, 5)).unwrap();
        let made: Vec<_> = sequences.steps().collect();
        assert!(
            matches!(&made[..], [Err(Error::Sequence { sequence, source })]
                if *sequence == first && matches!(**source, Error::NotANumber { .. })),
            "{made:?}"
        );
    }
}

fn options_of_two() -> SequencesOptions {
    options(2, DType::F16)
}

/// That tokens drawn from the candidates that a device finds are those drawn from all logits.
pub(crate) fn candidates_are_those_of_all_logits(engine: &Engine, seeds: u64) {
    let model = load(engine, LLAMA, "candidates");
    let mut session = session(&model, DType::F32);
    for (k, temperature) in [(1, 1.0), (3, 1.0), (5, 3.0), (12, 2.0), (128, 2.0)] {
        for seed in 0..seeds {
            let few = Sampler { top_k: k, temperature, seed, ..Sampler::default() };
            // A bias without effect still needs all logits.
            let all = Sampler { logit_bias: vec![(0, 0.0)], ..few.clone() };
            let mut drawn = |sampler| alone(&mut session, &[1, 6, 7], sampler, 10);
            assert_eq!(drawn(&few), drawn(&all), "top_k {k}, seed {seed}");
        }
    }
}
