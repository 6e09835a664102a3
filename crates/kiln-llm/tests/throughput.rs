//! The tests of `kiln-llm bench` as calls of the library.

use std::time::Duration;

use kiln::Engine;
use kiln_llm::{Model, SequencesOptions, SessionOptions};

use crate::support::random_model::{Kind, LLAMA, MIXTRAL, RandomModel};

fn with_model(kind: Kind, name: &str, test: impl FnOnce(&Model<'_>)) {
    let engine = Engine::builder().without_profile().build().unwrap();
    let path = RandomModel::new(kind).save(name);
    let model = Model::load(&engine, &path).unwrap();
    test(&model);
    std::fs::remove_file(path).unwrap();
}

#[test]
fn a_token_reads_all_weights_but_the_embedding_and_other_experts() {
    // Elements of the attention of a layer, of its network or of one expert, of its norms, and of the logits with their norm.
    let (attention, network, norms, logits) = (2 * 24 * 24 + 2 * 12 * 24, 3 * 40 * 24, 2 * 24, 12 * 24 + 24);
    with_model(LLAMA, "throughput-llama", |model| {
        let work = model.token_work();
        assert_eq!(work.bytes, 4 * (2 * (attention + network + norms) + logits));
        assert_eq!(work.flops, 2 * 2 * (attention + network));
    });
    // Two of five experts, and the matrix that chooses them.
    with_model(MIXTRAL, "throughput-mixtral", |model| {
        let work = model.token_work();
        assert_eq!(work.bytes, 4 * (2 * (attention + 5 * 24 + 2 * network + norms) + logits));
        assert_eq!(work.flops, 2 * 2 * (attention + 5 * 24 + 2 * network));
    });
    let tied = Kind { tied: true, ..LLAMA };
    with_model(tied, "throughput-tied", |model| {
        assert_eq!(model.token_work().bytes, 4 * (2 * (attention + network + norms) + logits));
    });
}

#[test]
fn sessions_and_sequences_compute_the_tokens_that_are_timed() {
    with_model(LLAMA, "throughput-times", |model| {
        let context = Some(30);
        let mut session = model.session(SessionOptions { context, ..SessionOptions::default() }).unwrap();
        assert!(session.time_prompt(9, 20).unwrap() > Duration::ZERO);
        assert_eq!(session.tokens()[..9], model.arbitrary_tokens(0, 9));
        // With the token that was chosen.
        assert_eq!((session.tokens()[9..29].to_vec(), session.tokens().len()), (model.arbitrary_tokens(0, 20), 30));
        assert!(session.time_decode(9, 3).unwrap() > Duration::ZERO);
        assert_eq!((session.tokens()[..9].to_vec(), session.tokens().len()), (model.arbitrary_tokens(0, 9), 9 + 1 + 3));
        assert!(session.time_prompt(11, 20).is_err(), "31 tokens and room for 30");

        let options = SequencesOptions { most: 3, context, ..SequencesOptions::default() };
        let mut sequences = model.sequences(options).unwrap();
        for round in 0..2 {
            let time = sequences.time(3, 8, 4, round).unwrap();
            assert!(time.prompts > Duration::ZERO && time.decode > Duration::ZERO && sequences.is_empty());
        }
        assert!(sequences.time(4, 8, 4, 2).is_err(), "four sequences and room for three");
    });
}
