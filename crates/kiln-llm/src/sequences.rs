//! Several sequences of tokens of one model, which advance together.

use std::collections::VecDeque;

use kiln::{DType, State};

use crate::architecture::{ArrivingRows, Copying, Layout, Ranked, Row, Rows};
use crate::placement::{Asked, MemoryPlan, Placing, is_on_cpu, placed};
use crate::{Decoder, Error, Model, Result, Sampler, SequenceId, Session, SessionOptions, Surprises};

/// Maximum number of sequences.
const MOST: usize = 64;

/// Options of [`Sequences`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SequencesOptions {
    /// The maximum number of sequences at once, 1 to 64. Memory for the keys and values of all of them is allocated when the first one
    /// is added.
    pub most: usize,
    /// The maximum number of tokens of each. `None` is the context length of the model, at most 4096.
    pub context: Option<usize>,
    /// The type of cached keys and values; see [`SessionOptions::cache`].
    pub cache: DType,
}

impl Default for SequencesOptions {
    fn default() -> Self {
        Self { most: 8, context: None, cache: DType::F16 }
    }
}

/// Options of one sequence.
#[derive(Debug, Clone, PartialEq)]
pub struct SequenceOptions {
    /// Chooses its tokens.
    pub sampler: Sampler,
    /// The maximum number of new tokens, at least 1.
    pub most: usize,
    /// Continues after tokens that end a text, as benchmarks do.
    pub ignore_end: bool,
}

impl Default for SequenceOptions {
    fn default() -> Self {
        Self { sampler: Sampler::default(), most: usize::MAX, ignore_end: false }
    }
}

/// The reason why a sequence ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Finish {
    /// The model ended the text.
    End,
    /// It has reached the requested number of new tokens.
    Most,
    /// The context is full.
    Context,
}

/// A token that a model made for one of several sequences.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Made {
    /// The sequence that it was added to.
    pub sequence: SequenceId,
    /// The token.
    pub token: u32,
    /// The text that this token completes: a character whose last bytes are missing comes with a later token, or as a replacement
    /// character with the last one. Empty for a token that ends the text.
    pub text: String,
    /// The reason why the sequence ended, if this is its last token; the sequence has then left.
    pub finish: Option<Finish>,
}

/// Several sequences of tokens of one model. [`Sequences::step`] makes a token for each of them in one pass over the weights.
///
/// A sequence that ends leaves, and another one may take its place while the rest go on. The sequences are independent of one another:
/// each gets the tokens that a [`Session`] would give it, except that other numbers of rows sum in another order, so the order of nearly
/// equal logits may change.
///
/// ```no_run
/// use kiln_llm::{Model, SequenceOptions, SequencesOptions};
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = kiln::Engine::new()?;
/// let model = Model::load(&engine, "model.gguf")?;
/// let mut sequences = model.sequences(SequencesOptions::default())?;
/// for prompt in ["Once upon a time", "The capital of France is"] {
///     sequences.add(&model.tokenizer().encode(prompt), SequenceOptions { most: 100, ..SequenceOptions::default() })?;
/// }
/// while !sequences.is_empty() {
///     for made in sequences.step()? {
///         println!("{}: {}", made.sequence, made.text);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct Sequences<'m> {
    pub(crate) model: &'m Model<'m>,
    layout: Layout,
    placing: Placing,
    /// Keys and values of each layer, `[slots * kv_heads * context, size]`.
    caches: Vec<[State; 2]>,
    graphs: Vec<Rows<'m>>,
    /// The session that computes prompts, in caches of its own, from which they are copied. A common prefix of
    /// consecutive prompts is computed once.
    prompt: Session<'m>,
    /// Copies from the caches of the prompt, and from one slot to another.
    from_prompt: Option<Copying<'m>>,
    between: Option<Copying<'m>>,
    slots: Vec<Option<Sequence<'m>>>,
    next: u64,
    /// The graph of the last step.
    last: Option<usize>,
    /// The next step, which a GPU computes already.
    begun: Option<Begun>,
    /// Whether a GPU may compute steps before the tokens that they follow are read. `false` once it could not.
    begins: bool,
}

/// A step that a GPU computes before its tokens are requested. All its samplers are greedy.
#[derive(Debug)]
struct Begun {
    graph: usize,
    rows: Vec<(SequenceId, Row)>,
    arriving: ArrivingRows,
}

/// A sequence. All of its tokens except the last are in the caches.
#[derive(Debug)]
struct Sequence<'m> {
    id: SequenceId,
    tokens: Vec<u32>,
    options: SequenceOptions,
    /// Remaining number of tokens to generate.
    left: usize,
    surprises: Surprises,
    decoder: Decoder<'m>,
}

#[cfg(not(browser_gpu))]
impl Model<'_> {
    /// Makes an empty set of sequences of tokens.
    ///
    /// # Errors
    /// The errors of [`Sequences::new`].
    pub fn sequences(&self, options: SequencesOptions) -> Result<Sequences<'_>> {
        Sequences::new(self, options)
    }
}

impl<'m> Sequences<'m> {
    /// Makes an empty set of sequences of a model.
    ///
    /// # Errors
    /// [`Error::Model`] for 0 or more than 64 sequences, and if the keys of all of them together exceed 32-bit indices; the errors of
    /// [`Session::new`].
    pub fn new(model: &'m Model<'m>, options: SequencesOptions) -> Result<Self> {
        let SequencesOptions { most, context, cache } = options;
        let refused = |reason| Err(Error::model("sequences", reason));
        if most == 0 || most > MOST {
            return refused(format!("{most} sequences at once; 1 to {MOST} are possible"));
        }
        let session = SessionOptions { context, cache };
        let config = &model.config;
        let layout = Layout { slots: most, kv_heads: config.kv_heads, context: Session::context_of(model, session)? };
        let Some(rows) = layout.rows() else {
            let reason = format!("the keys of {most} sequences of {} tokens exceed 32-bit indices", layout.context);
            return refused(format!("{reason}: fewer sequences or a shorter context are needed"));
        };
        // The sequences, and the one that computes prompts.
        let asked = Asked { context: layout.context, cache, sequences: most + 1, adapters: None };
        let (placing, planned) = placed(model, asked)?;
        let begins = !is_on_cpu(model, planned.as_ref());
        let prompt = Session::placed(model, session, None, placing.clone(), planned)?;
        Ok(Self {
            model,
            layout,
            placing,
            caches: Layout::caches(config, cache, rows)?,
            graphs: Vec::new(),
            prompt,
            from_prompt: None,
            between: None,
            slots: (0..most).map(|_| None).collect(),
            next: 0,
            last: None,
            begun: None,
            begins,
        })
    }

    /// The number of sequences.
    pub fn len(&self) -> usize {
        self.slots.iter().flatten().count()
    }

    /// Whether the set has no sequences.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The number of sequences that can still be added.
    pub fn room(&self) -> usize {
        self.slots.len() - self.len()
    }

    /// The maximum number of tokens of each sequence.
    pub fn context(&self) -> usize {
        self.layout.context
    }

    /// The plan of the memory of all sequences on each device, and of the placement of layers; `None` on an engine without GPUs, which
    /// needs no plan.
    pub fn memory_plan(&self) -> Option<&MemoryPlan> {
        self.prompt.memory_plan()
    }

    /// The tokens of a sequence so far; `None` if the sequence does not exist.
    pub fn tokens(&self, sequence: SequenceId) -> Option<&[u32]> {
        self.find(sequence).map(|(_, sequence)| &sequence.tokens[..])
    }

    fn find(&self, id: SequenceId) -> Option<(usize, &Sequence<'m>)> {
        let mut all = self.slots.iter().enumerate().filter_map(|(slot, held)| Some((slot, held.as_ref()?)));
        all.find(|(_, sequence)| sequence.id == id)
    }

    /// Adds a sequence that begins with these tokens, and computes their keys and values. Those of a common prefix with the prompt that was
    /// added before are copied.
    ///
    /// # Errors
    /// [`Error::SequencesFull`]; [`Error::Model`] for an empty prompt, or if 0 tokens are to be made; [`Error::ContextFull`] if the prompt
    /// and one more token do not fit; [`Error::Token`] for a token that the model does not have; the errors of [`Sampler::check`];
    /// [`Error::Kiln`]. Nothing is added then.
    pub fn add(&mut self, prompt: &[u32], options: SequenceOptions) -> Result<SequenceId> {
        let slot = self.place_for(&options)?;
        let Some((_, before)) = prompt.split_last() else {
            return Err(Error::model("sequences", "the prompt has 0 tokens; begin with one, such as BOS"));
        };
        self.check_room(prompt.len())?;
        let vocabulary = self.model.vocabulary();
        if let Some(&token) = prompt.iter().find(|&&token| token as usize >= vocabulary) {
            return Err(Error::Token { token, vocabulary });
        }
        if !before.is_empty() {
            self.prompt.replace(before)?;
            self.prompt.fill()?;
            let source = Layout { slots: 1, ..self.layout };
            let copying = match &mut self.from_prompt {
                Some(copying) => copying,
                none => {
                    let caches = [self.prompt.caches(), &self.caches];
                    none.insert(Copying::record(self.model.engine, caches, &self.placing, [source, self.layout])?)
                }
            };
            copying.copy(0..before.len(), [0, slot])?;
        }
        Ok(self.put(slot, prompt.to_vec(), options, Surprises::default(), self.model.tokenizer().decoder()))
    }

    /// Adds a sequence that begins with all tokens of another one, whose keys and values are copied.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`], and the errors of [`Sequences::add`].
    pub fn fork(&mut self, sequence: SequenceId, options: SequenceOptions) -> Result<SequenceId> {
        let Some((from, source)) = self.find(sequence) else { return Err(Error::UnknownSequence { sequence }) };
        let (tokens, surprises, decoder) = (source.tokens.clone(), source.surprises.clone(), source.decoder.clone());
        let slot = self.place_for(&options)?;
        self.check_room(tokens.len())?;
        let copying = match &mut self.between {
            Some(copying) => copying,
            none => {
                let caches = [&self.caches[..]; 2];
                none.insert(Copying::record(self.model.engine, caches, &self.placing, [self.layout; 2])?)
            }
        };
        copying.copy(0..tokens.len() - 1, [from, slot])?;
        Ok(self.put(slot, tokens, options, surprises, decoder))
    }

    /// Removes a sequence, and returns its tokens.
    ///
    /// # Errors
    /// [`Error::UnknownSequence`].
    pub fn remove(&mut self, sequence: SequenceId) -> Result<Vec<u32>> {
        let found = self.find(sequence).map(|(slot, _)| slot);
        let removed = found.and_then(|slot| self.slots[slot].take());
        removed.map(|removed| removed.tokens).ok_or(Error::UnknownSequence { sequence })
    }

    /// The first free slot, for a sequence with these options.
    fn place_for(&self, options: &SequenceOptions) -> Result<usize> {
        options.sampler.check(self.model.vocabulary())?;
        if options.most == 0 {
            return Err(Error::model("sequences", "0 tokens are to be made; set SequenceOptions::most to 1 or more"));
        }
        let free = self.slots.iter().position(Option::is_none);
        free.ok_or(Error::SequencesFull { most: self.slots.len() })
    }

    /// Checks that there is room for another token after this many.
    fn check_room(&self, tokens: usize) -> Result<()> {
        let context = self.layout.context;
        if tokens < context { Ok(()) } else { Err(Error::ContextFull { context, asked: tokens + 1 }) }
    }

    fn put(
        &mut self,
        slot: usize,
        tokens: Vec<u32>,
        options: SequenceOptions,
        surprises: Surprises,
        decoder: Decoder<'m>,
    ) -> SequenceId {
        let id = SequenceId(self.next);
        self.next += 1;
        let left = options.most;
        self.slots[slot] = Some(Sequence { id, tokens, options, left, surprises, decoder });
        id
    }

    /// Makes a token for each sequence, in one pass over the weights, and adds it. Tokens are returned in the order of the slots; without
    /// sequences the list is empty. Sequences that end have left when this returns.
    ///
    /// If every sampler is greedy, and one GPU runs all layers and does not time kernels, the GPU begins the step after this one before the
    /// tokens of this one are read. A sequence that is added before that next step is not part of it: it gets its first token in the step
    /// after it.
    ///
    /// # Errors
    /// [`Error::Sequence`] if a sequence has no valid next token ([`Error::NotANumber`], or [`Error::Sampler`] if its bias forbids every
    /// token); [`Error::Kiln`]. No token is added then: remove the sequence, or try again.
    pub fn step(&mut self) -> Result<Vec<Made>> {
        let row = |(slot, held): (usize, &Option<Sequence<'_>>)| {
            let sequence = held.as_ref()?;
            let (token, before) = sequence.tokens.split_last()?;
            Some((sequence.id, Row { slot, token: *token, position: before.len() }))
        };
        let rows: Vec<(SequenceId, Row)> = self.slots.iter().enumerate().filter_map(row).collect();
        let tokens = match self.begun(&rows)? {
            Some(tokens) => tokens,
            None if rows.is_empty() => Vec::new(),
            None => {
                let rows: Vec<Row> = rows.into_iter().map(|(_, row)| row).collect();
                let tokens = self.choose(&rows)?;
                rows.into_iter().map(|row| row.slot).zip(tokens).collect()
            }
        };
        Ok(tokens.into_iter().filter_map(|(slot, token)| self.advance(slot, token)).collect())
    }

    /// Returns the next tokens of the sequences in the step that a GPU has begun, or begins now, with their slots. The step after it is
    /// begun before they are read: the device has the tokens, so it need not wait for the host. `None` if the tokens must be computed by
    /// [`Self::choose`]: also after an error, which that function reports or recovers from.
    fn begun(&mut self, rows: &[(SequenceId, Row)]) -> Result<Option<Vec<(usize, u32)>>> {
        let is_greedy = |sequence: &Sequence<'_>| sequence.options.sampler.is_greedy();
        // The same sequence has the same token at the same position.
        let is_same = |(id, row): &(SequenceId, Row), (other, begun): &(SequenceId, Row)| {
            (id, row.slot, row.position) == (other, begun.slot, begun.position)
        };
        let is_present = |begun: &(SequenceId, Row)| rows.iter().any(|row| is_same(row, begun));
        let begun = match self.begun.take().filter(|begun| begun.rows.iter().any(is_present)) {
            Some(begun) => begun,
            None if rows.is_empty() || !self.begins || !self.slots.iter().flatten().all(is_greedy) => return Ok(None),
            None => {
                let graph = self.graph(rows.len())?;
                match self.begin(graph, rows.to_vec(), None) {
                    Some(begun) => begun,
                    None => return Ok(None),
                }
            }
        };
        let kept: Vec<bool> = begun.rows.iter().map(is_present).collect();
        let present: Vec<_> = begun.rows.iter().zip(&kept).filter(|(_, kept)| **kept).map(|(row, _)| *row).collect();
        // A sequence that was added waits for the step after this.
        let next = if present.len() == rows.len() { self.begin_after(&begun, &kept, &present) } else { None };
        let Ok(tokens) = begun.arriving.arrive(&kept) else { return Ok(None) };
        let of = |((sequence, row), chosen): ((SequenceId, Row), Result<u32>)| match chosen {
            Ok(token) => Ok((row.slot, token)),
            Err(source) => Err(Error::Sequence { sequence, source: Box::new(source) }),
        };
        let tokens: Vec<(usize, u32)> = present.into_iter().zip(tokens).map(of).collect::<Result<_>>()?;
        self.begun = next;
        Ok(Some(tokens))
    }

    /// Begins the step after one that is begun, for those of its sequences that are still present, unless some end with this one.
    fn begin_after(&mut self, begun: &Begun, kept: &[bool], present: &[(SequenceId, Row)]) -> Option<Begun> {
        let context = self.layout.context;
        let goes_on = |(_, row): &(SequenceId, Row)| {
            let sequence = self.slots[row.slot].as_ref();
            sequence.is_some_and(|sequence| sequence.left > 1 && sequence.tokens.len() + 1 < context)
        };
        // Fewer sequences may have a smaller graph.
        let is_of_graph = self.rows_of_graph(present.len()) == self.graphs[begun.graph].rows();
        if !is_of_graph || !present.iter().all(goes_on) {
            return None;
        }
        let next = |&(id, row): &(SequenceId, Row)| (id, Row { position: row.position + 1, ..row });
        self.begin(begun.graph, present.iter().map(next).collect(), Some(begun.arriving.places(kept)))
    }

    /// Begins a step, as [`Rows::begin`] does.
    fn begin(&mut self, graph: usize, rows: Vec<(SequenceId, Row)>, places: Option<Vec<usize>>) -> Option<Begun> {
        self.last = Some(graph);
        let of_rows: Vec<Row> = rows.iter().map(|(_, row)| *row).collect();
        let arriving = self.graphs[graph].begin(&of_rows, places).ok().flatten();
        self.begins = arriving.is_some();
        arriving.map(|arriving| Begun { graph, rows, arriving })
    }

    /// Returns the time of each kernel of the last step, on the GPU that ran it.
    ///
    /// # Errors
    /// [`Error::Kiln`] if the engine does not time kernels (`kiln::EngineBuilder::time_kernels`), or if several devices or the CPU
    /// computed the step; [`Error::Model`] before the first step.
    #[cfg(not(browser_gpu))]
    pub fn profile(&self) -> Result<kiln::KernelProfile> {
        let last = self.last.and_then(|last| self.graphs.get(last));
        last.ok_or_else(|| Error::model("sequences", "no step was computed yet; call `step` first"))?.profile()
    }

    /// The next token of each of these sequences.
    fn choose(&mut self, rows: &[Row]) -> Result<Vec<u32>> {
        let at = self.graph(rows.len())?;
        self.last = Some(at);
        let (graph, vocabulary) = (&mut self.graphs[at], self.model.vocabulary());
        let mut sequences: Vec<&mut Sequence<'m>> = self.slots.iter_mut().flatten().collect();
        let of = |sequence: &Sequence<'m>, chosen: Result<u32>| {
            chosen.map_err(|source| Error::Sequence { sequence: sequence.id, source: Box::new(source) })
        };
        if sequences.iter().all(|sequence| sequence.options.sampler.is_greedy()) {
            return graph.greatest(rows)?.into_iter().zip(sequences).map(|(chosen, one)| of(one, chosen)).collect();
        }
        let counts: Option<Vec<usize>> = sequences.iter().map(|one| one.options.sampler.candidates()).collect();
        if let Some(most) = counts.and_then(|counts| counts.into_iter().max()) {
            let found = graph.candidates(rows, most)?;
            let choose = |(found, one): (Result<Ranked>, &mut Sequence<'m>)| {
                let Sequence { options, tokens, surprises, .. } = &mut *one;
                let chosen = found.and_then(|found| options.sampler.choose_among(&found, tokens, surprises));
                of(one, chosen)
            };
            return found.into_iter().zip(sequences).map(choose).collect();
        }
        let (logits, places) = graph.logits(rows)?;
        let choose = |(place, one): (usize, &mut &mut Sequence<'m>)| {
            let logits = &logits[place * vocabulary..][..vocabulary];
            let Sequence { options, tokens, surprises, .. } = &mut **one;
            let chosen = match logits.iter().position(|logit| logit.is_nan()) {
                Some(token) => Err(Error::NotANumber { token }),
                None => options.sampler.choose(logits, tokens, surprises),
            };
            of(one, chosen)
        };
        places.into_iter().zip(&mut sequences).map(choose).collect()
    }

    /// Appends a token to the sequence of a slot, and removes the sequence if it ends.
    fn advance(&mut self, slot: usize, token: u32) -> Option<Made> {
        let is_end = self.model.tokenizer().is_end(token);
        let context = self.layout.context;
        let sequence = self.slots[slot].as_mut()?;
        sequence.tokens.push(token);
        sequence.left -= 1;
        let finish = match is_end && !sequence.options.ignore_end {
            true => Some(Finish::End),
            false if sequence.left == 0 => Some(Finish::Most),
            false => (sequence.tokens.len() == context).then_some(Finish::Context),
        };
        let mut text = String::new();
        if finish != Some(Finish::End) {
            text.push_str(sequence.decoder.push(token));
        }
        if finish.is_some() {
            text.push_str(sequence.decoder.finish());
        }
        let made = Made { sequence: sequence.id, token, text, finish };
        if finish.is_some() {
            self.slots[slot] = None;
        }
        Some(made)
    }

    /// The rows of the graph for this many sequences.
    fn rows_of_graph(&self, sequences: usize) -> usize {
        sequences.next_power_of_two().min(self.slots.len())
    }

    /// The graph for this many sequences, recorded if it is not cached.
    fn graph(&mut self, sequences: usize) -> Result<usize> {
        let rows = self.rows_of_graph(sequences);
        if let Some(at) = self.graphs.iter().position(|graph| graph.rows() == rows) {
            return Ok(at);
        }
        let Model { engine, config, weights, .. } = self.model;
        self.graphs.push(Rows::record(engine, config, weights, &self.caches, &self.placing, self.layout, rows)?);
        Ok(self.graphs.len() - 1)
    }

    /// Iterates over the tokens of all sequences until the last one has ended or a step fails. A step makes a token for each sequence; if
    /// the iterator is dropped in the middle of a step, the remaining tokens of the step are only in [`Sequences::tokens`].
    pub fn steps(&mut self) -> Steps<'_, 'm> {
        Steps { sequences: self, made: VecDeque::new(), failed: false }
    }
}

/// The tokens of several sequences, one by one: see [`Sequences::steps`].
#[derive(Debug)]
pub struct Steps<'s, 'm> {
    sequences: &'s mut Sequences<'m>,
    /// Tokens of the last step that were not returned yet.
    made: VecDeque<Made>,
    failed: bool,
}

impl Iterator for Steps<'_, '_> {
    type Item = Result<Made>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.made.is_empty() && !self.failed {
            match self.sequences.step() {
                Ok(made) => self.made = made.into(),
                Err(error) => {
                    self.failed = true;
                    return Some(Err(error));
                }
            }
        }
        self.made.pop_front().map(Ok)
    }
}
