//! Sessions: sequences of tokens that a model continues.

use std::sync::Arc;

use kiln::waiting::{WAITING, Waiting, wait};
use kiln::{DType, Explanation, State};

use crate::architecture::{ActiveAdapters, AdapterSet, ArrivingToken, Forward, Recorded, Scoring, Step, caches};
use crate::placement::{Asked, Placing, is_on_cpu, placed};
use crate::sampling::DeviceChoice;
use crate::text_parts::Parts;
use crate::{Adapter, Decoder, Error, MemoryPlan, Model, Result, Sampler, Surprises};

/// Probabilities that are computed at once when texts are scored: 128 MiB of f32.
const SCORED_AT_ONCE: usize = 1 << 25;

/// Default maximum context: the model's context, but not more than this.
pub(crate) const CONTEXT: usize = 4096;

/// Options of a session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SessionOptions {
    /// The maximum number of tokens. `None` is the context length of the model, at most 4096.
    pub context: Option<usize>,
    /// The type of cached keys and values: f32, f16, bf16, or a quantised format whose whole blocks fill a head.
    pub cache: DType,
}

impl Default for SessionOptions {
    fn default() -> Self {
        Self { context: None, cache: DType::F16 }
    }
}

/// The last tokens that are not in the caches, which one graph computes, and the number of tokens before them.
struct LastPart {
    tokens: Vec<u32>,
    before: usize,
}

/// A sequence of tokens of a model, with their cached keys and values.
#[derive(Debug)]
pub struct Session<'m> {
    pub(crate) model: &'m Model<'m>,
    context: usize,
    /// Where the layers run, and the memory plan; without GPUs there is no plan.
    placing: Placing,
    planned: Option<MemoryPlan>,
    parts: Parts,
    /// Keys and values of each layer.
    caches: Vec<[State; 2]>,
    adapters: Option<ActiveAdapters>,
    steps: Vec<Step<'m>>,
    /// The rows of the graph that computed the last tokens.
    last: Option<usize>,
    scoring: Option<Scoring<'m>>,
    /// The tokens so far. All but the last few are in the caches.
    tokens: Vec<u32>,
    cached: usize,
    /// The token after `tokens`, which a GPU chooses already.
    begun: Option<ArrivingToken>,
    /// Whether a GPU may compute steps before the tokens that they follow are read. `false` once it could not.
    begins: bool,
    /// The surprises of tokens that Mirostat drew.
    surprises: Surprises,
}

impl Model<'_> {
    /// Makes an empty session.
    ///
    /// # Errors
    /// The errors of [`Session::new`].
    pub fn session(&self, options: SessionOptions) -> Result<Session<'_>> {
        Session::new(self, options)
    }

    /// Plans the memory of a session on each device, and the placement of its layers. Nothing is allocated.
    ///
    /// # Errors
    /// The errors of [`Session::new`].
    #[cfg(not(browser_gpu))]
    pub fn memory_plan(&self, options: SessionOptions) -> Result<MemoryPlan> {
        let context = Session::context_of(self, options)?;
        let asked = Asked { context, cache: options.cache, sequences: 1, adapters: None };
        Ok(crate::placement::plan(self, asked)?.1)
    }
}

impl<'m> Session<'m> {
    /// Makes an empty session.
    ///
    /// # Errors
    /// [`Error::Model`] for a context of 0 tokens or of more than the maximum number of positions, and if layers are to run on a GPU that
    /// the engine lacks ([`Model::place_layers`]); [`Error::OutOfMemory`] if they do not fit that GPU; [`Error::Kiln`] for a type that a
    /// cache cannot have, and if a GPU cannot be used.
    pub fn new(model: &'m Model<'m>, options: SessionOptions) -> Result<Self> {
        Self::with_adapters(model, options, None)
    }

    /// Makes an empty session with adapters to switch between.
    pub(crate) fn with_adapters(
        model: &'m Model<'m>,
        options: SessionOptions,
        adapters: Option<Arc<AdapterSet>>,
    ) -> Result<Self> {
        let context = Self::context_of(model, options)?;
        let adapters = adapters.filter(|set| !set.adapters().is_empty()).map(ActiveAdapters::new);
        let asked = Asked { context, cache: options.cache, sequences: 1, adapters: adapters.as_ref() };
        let (placing, planned) = placed(model, asked)?;
        Self::placed(model, options, adapters, placing, planned)
    }

    /// The context of a session with these options.
    pub(crate) fn context_of(model: &Model<'_>, options: SessionOptions) -> Result<usize> {
        let config = &model.config;
        let context = options.context.unwrap_or(config.context.min(CONTEXT));
        if context == 0 || context > kiln::op::Rope::POSITIONS {
            let reason = format!("a context of {context} tokens; 1 to {} are possible", kiln::op::Rope::POSITIONS);
            return Err(Error::model("session", reason));
        }
        Ok(context)
    }

    /// A session whose layers run at these placements.
    pub(crate) fn placed(
        model: &'m Model<'m>,
        options: SessionOptions,
        adapters: Option<ActiveAdapters>,
        placing: Placing,
        planned: Option<MemoryPlan>,
    ) -> Result<Self> {
        let context = Self::context_of(model, options)?;
        let on_cpu = is_on_cpu(model, planned.as_ref());
        Ok(Self {
            model,
            context,
            placing,
            planned,
            parts: if on_cpu { Parts::CPU } else { Parts::GPU },
            caches: caches(&model.config, options.cache, context)?,
            adapters,
            steps: Vec::new(),
            last: None,
            scoring: None,
            tokens: Vec::new(),
            cached: 0,
            begun: None,
            // On the CPU the graph for a device's choice would be recorded without use.
            begins: !on_cpu,
            surprises: Surprises::default(),
        })
    }

    /// The tokens so far.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// The maximum number of tokens.
    pub fn context(&self) -> usize {
        self.context
    }

    /// Adds tokens. They are computed when the next token or its logits are requested.
    ///
    /// # Errors
    /// [`Error::ContextFull`] if they do not fit; [`Error::Token`] for a token that the model does not have. Nothing is added
    /// then.
    pub fn push(&mut self, tokens: &[u32]) -> Result<()> {
        self.check(self.tokens.len(), tokens)?;
        self.begun = self.begun.take().filter(|_| tokens.is_empty());
        self.tokens.extend_from_slice(tokens);
        Ok(())
    }

    /// Replaces all tokens, and returns the number of tokens whose keys and values are reused: those of the common prefix of the old and
    /// the new tokens.
    ///
    /// # Errors
    /// The errors of [`Session::push`]; nothing changes then.
    pub fn replace(&mut self, tokens: &[u32]) -> Result<usize> {
        self.check(0, tokens)?;
        let common = self.tokens.iter().zip(tokens).take_while(|(a, b)| a == b).count();
        self.truncate(common);
        self.push(&tokens[common..])?;
        Ok(self.cached)
    }

    /// Checks that the model has these tokens, and that they fit after `others` tokens.
    fn check(&self, others: usize, tokens: &[u32]) -> Result<()> {
        if others + tokens.len() > self.context {
            return Err(Error::ContextFull { context: self.context, asked: others + tokens.len() });
        }
        let vocabulary = self.model.vocabulary();
        match tokens.iter().find(|&&token| token as usize >= vocabulary) {
            Some(&token) => Err(Error::Token { token, vocabulary }),
            None => Ok(()),
        }
    }

    /// Forgets all tokens except the first `keep`, whose keys and values stay in the caches.
    pub fn truncate(&mut self, keep: usize) {
        self.begun = self.begun.take().filter(|_| keep >= self.tokens.len());
        self.tokens.truncate(keep);
        self.cached = self.cached.min(keep);
        self.surprises.truncate(keep);
    }

    /// Uses an adapter from now on, its changes multiplied by `scale`, or none with `None`. It must be one of those that the session was
    /// made for ([`AdaptedModel::session`](crate::AdaptedModel::session)).
    ///
    /// The recorded graphs are reused; only the scales are uploaded. The tokens stay, but their keys and values depend on the adapter, so
    /// they are computed again when the next token is requested. Setting the current adapter and scale again changes nothing.
    ///
    /// # Errors
    /// [`Error::Adapter`] for an adapter that the session was not made for, and for a scale that is not finite.
    pub fn set_adapter(&mut self, adapter: Option<&Adapter>, scale: f32) -> Result<()> {
        match adapter {
            Some(adapter) => self.set_adapters(&[(adapter, scale)]),
            None => self.set_adapters(&[]),
        }
    }

    /// Uses several adapters from now on, each with its scale: their changes are added up. See [`Session::set_adapter`].
    ///
    /// # Errors
    /// The errors of [`Session::set_adapter`]; [`Error::Adapter`] for an adapter that is named twice.
    pub fn set_adapters(&mut self, used: &[(&Adapter, f32)]) -> Result<()> {
        let Self { adapters, steps, scoring, .. } = self;
        let Some(adapters) = adapters else {
            return used.first().map_or(Ok(()), |(adapter, _)| Err(ActiveAdapters::not_given(adapter)));
        };
        if !adapters.choose(used)? {
            return Ok(());
        }
        (self.cached, self.begun) = (0, None);
        let set = steps.iter_mut().try_for_each(|step| step.set_adapters(adapters));
        let set = set.and_then(|()| scoring.iter_mut().try_for_each(|scoring| scoring.set_adapters(adapters)));
        if set.is_err() {
            // Recording again applies the new scales.
            steps.clear();
            *scoring = None;
        }
        set
    }

    /// Computes a part of the tokens that were added, at most 1024 of them, and returns how many still have to be computed; 0 once only
    /// the last part is left, which the next token is computed with. A program that calls this until it is 0 can show its progress
    /// through a long prompt, and stop. Otherwise [`Session::sample`] computes all parts, with the same results.
    ///
    /// # Errors
    /// [`Error::Kiln`]. Parts that were computed are kept.
    #[cfg(not(browser_gpu))]
    pub fn prefill(&mut self) -> Result<usize> {
        wait(self.compute_part(WAITING))
    }

    /// [`Session::prefill`] for pages, where nothing can wait; a part has at most 64 tokens on the CPU there, because a page receives
    /// nothing while the CPU computes.
    ///
    /// # Errors
    /// [`Error::Kiln`]. Parts that were computed are kept.
    pub async fn prefill_async(&mut self) -> Result<usize> {
        self.compute_part(Waiting::Elsewhere).await
    }

    /// Returns the logits of the token after the tokens so far, one for each token of the vocabulary.
    ///
    /// # Errors
    /// [`Error::Model`] if the session is empty; [`Error::Kiln`].
    #[cfg(not(browser_gpu))]
    pub fn logits(&mut self) -> Result<Vec<f32>> {
        wait(self.logits_waiting(WAITING))
    }

    /// Returns the logits of [`Session::logits`], for pages, where nothing can block.
    ///
    /// # Errors
    /// [`Error::Model`] if the session is empty; [`Error::Kiln`].
    pub async fn logits_async(&mut self) -> Result<Vec<f32>> {
        self.logits_waiting(Waiting::Elsewhere).await
    }

    async fn logits_waiting(&mut self, waiting: Waiting) -> Result<Vec<f32>> {
        let last = self.before_last(waiting).await?;
        let logits = self.last_step(&last)?.logits(&last.tokens, last.before, waiting).await?;
        self.cached = self.tokens.len();
        match logits.iter().position(|x| x.is_nan()) {
            Some(token) => Err(Error::NotANumber { token }),
            None => Ok(logits),
        }
    }

    /// Chooses the next token, adds it, and returns it. Penalties consider all tokens so far, including those of prompts.
    ///
    /// # Errors
    /// The errors of [`Session::logits`] and of [`Sampler::check`]; [`Error::Sampler`] if the bias forbids every token;
    /// [`Error::ContextFull`] if the session is full. Nothing is added then.
    #[cfg(not(browser_gpu))]
    pub fn sample(&mut self, sampler: &Sampler) -> Result<u32> {
        wait(self.sample_waiting(sampler, false, WAITING))
    }

    /// [`Session::sample`] for programs that will request the token after this one with the same sampler: a GPU may begin to compute it
    /// before this token is read. If the program does something else instead, only that computation is lost.
    ///
    /// # Errors
    /// The errors of [`Session::sample`].
    #[cfg(not(browser_gpu))]
    pub fn sample_and_begin(&mut self, sampler: &Sampler) -> Result<u32> {
        wait(self.sample_waiting(sampler, true, WAITING))
    }

    /// [`Session::sample`] for pages, where nothing can block.
    ///
    /// # Errors
    /// The errors of [`Session::logits_async`] and of [`Sampler::check`]; [`Error::Sampler`] if the bias forbids every token;
    /// [`Error::ContextFull`] if the session is full. Nothing is added then.
    pub async fn sample_async(&mut self, sampler: &Sampler) -> Result<u32> {
        self.sample_waiting(sampler, false, Waiting::Elsewhere).await
    }

    /// Chooses the next token. `more` says whether the token after this one will be requested, too.
    async fn sample_waiting(&mut self, sampler: &Sampler, more: bool, waiting: Waiting) -> Result<u32> {
        sampler.check(self.model.vocabulary())?;
        if self.tokens.len() == self.context {
            return Err(Error::ContextFull { context: self.context, asked: self.context + 1 });
        }
        let token = match self.begun(sampler, more, waiting).await {
            Some(token) => token,
            None => self.chosen(sampler, waiting).await?,
        };
        self.tokens.push(token);
        Ok(token)
    }

    /// Returns the next token, by a step that is executed now.
    async fn chosen(&mut self, sampler: &Sampler, waiting: Waiting) -> Result<u32> {
        let Some(count) = sampler.candidates() else {
            let logits = self.logits_waiting(waiting).await?;
            return sampler.choose(&logits, &self.tokens, &mut self.surprises);
        };
        let last = self.before_last(waiting).await?;
        let step = self.last_step(&last)?;
        if sampler.is_greedy() {
            let greatest = step.greatest(&last.tokens, last.before, waiting).await?;
            self.cached = self.tokens.len();
            return Ok(greatest);
        }
        let candidates = step.candidates(&last.tokens, last.before, count, waiting).await?;
        self.cached = self.tokens.len();
        sampler.choose_among(&candidates, &self.tokens, &mut self.surprises)
    }

    /// Returns the next token, if a GPU chooses it in a step that is begun. With `more` the step after it is also begun before this token
    /// is read: the device has the token, so it need not wait for the host. `None` if the token must be computed by [`Self::chosen`]: also
    /// after an error, which that function reports or recovers from.
    ///
    /// A device draws in f32 and assumes that the sampler stays the same. The host draws among the same candidates in f64, and its token
    /// counts: if the device's token differs, the step that began with it is discarded.
    async fn begun(&mut self, sampler: &Sampler, more: bool, waiting: Waiting) -> Option<u32> {
        let (count, &last) = (self.tokens.len(), self.tokens.last()?);
        let choice = sampler.on_device(count)?;
        let begun = match self.begun.take().filter(|begun| begun.serves(choice)) {
            Some(begun) => begun,
            // Only the last token is not in the caches.
            None if more && self.cached + 1 >= count => self.begin(Some(last), count - 1, choice, waiting).await?,
            None => return None,
        };
        let next = match sampler.on_device(count + 1) {
            Some(choice) if more && count + 1 < self.context => self.begin(None, count, choice, waiting).await,
            _ => None,
        };
        let chosen = begun.arrive().await.ok()?;
        let token = match &chosen.candidates {
            Some(candidates) => sampler.choose_among(candidates, &self.tokens, &mut self.surprises).ok()?,
            None => chosen.token,
        };
        self.cached = count;
        self.begun = next.filter(|_| token == chosen.token);
        Some(token)
    }

    /// Begins the step of a token that follows `before` others, or of the result of the step before.
    async fn begin(
        &mut self,
        token: Option<u32>,
        before: usize,
        choice: DeviceChoice,
        waiting: Waiting,
    ) -> Option<ArrivingToken> {
        if !self.begins {
            return None;
        }
        self.last = Some(1);
        let begun = match self.step(1) {
            Ok(step) => step.begin(token, before, choice, waiting).await.ok().flatten(),
            Err(_) => None,
        };
        self.begins = begun.is_some();
        begun
    }

    /// Adds tokens, and returns for each the logarithm of the probability that it follows those before it. The exponential of the
    /// negative mean is the perplexity of the text.
    ///
    /// # Errors
    /// The errors of [`Session::push`]; [`Error::Model`] if the session is empty, because a first token has no probability;
    /// [`Error::NotANumber`]; [`Error::Kiln`]. Nothing is added then.
    #[cfg(not(browser_gpu))]
    pub fn score(&mut self, tokens: &[u32]) -> Result<Vec<f32>> {
        let before = self.tokens.len();
        if before == 0 {
            return Err(Error::model(
                "session",
                "a first token has no probability; push one, such as BOS, and score the rest",
            ));
        }
        self.push(tokens)?;
        let all = std::mem::take(&mut self.tokens);
        let scores = self.scores(&all, before);
        self.tokens = all;
        if scores.is_err() {
            self.truncate(before);
        }
        scores
    }

    /// Returns these logarithms for all tokens of the session except the first `before`, which must be at least one.
    #[cfg(not(browser_gpu))]
    fn scores(&mut self, tokens: &[u32], before: usize) -> Result<Vec<f32>> {
        // The logits after the preceding token are needed too.
        self.cached = self.cached.min(before - 1);
        while self.cached < before - 1 {
            let (cached, left) = (self.cached, before - 1 - self.cached);
            let rows = self.parts.rows_for(left);
            let n = rows.min(left);
            wait(self.step(rows)?.extend(&tokens[cached..cached + n], cached, WAITING))?;
            self.cached += n;
        }
        let mut scores = Vec::with_capacity(tokens.len() - before);
        while self.cached < tokens.len() - 1 {
            let cached = self.cached;
            let scoring = self.scoring()?;
            let n = scoring.rows().min(tokens.len() - 1 - cached);
            let following = &tokens[cached + 1..cached + 1 + n];
            scores.extend(scoring.scores(&tokens[cached..cached + n], cached, following)?);
            self.cached += n;
        }
        Ok(scores)
    }

    /// The graph that scores tokens, recorded if it is not cached. The number of rows keeps the probabilities of all
    /// tokens small.
    fn scoring(&mut self) -> Result<&mut Scoring<'m>> {
        let scoring = match self.scoring.take() {
            Some(scoring) => scoring,
            None => {
                let Model { config, weights, .. } = self.model;
                let fits = |&rows: &usize| rows * config.vocabulary <= SCORED_AT_ONCE;
                let rows = self.parts.descending().find(fits).unwrap_or(1);
                Scoring::record(self.forward(rows)?, config, weights)?
            }
        };
        Ok(self.scoring.insert(scoring))
    }

    /// Generates the tokens that follow, one by one, until the model ends the text or `most` tokens are made.
    pub fn generate<'s>(&'s mut self, sampler: &'s Sampler, most: usize) -> Generation<'s, 'm> {
        let decoder = self.model.tokenizer().decoder();
        Generation { session: self, sampler, decoder, left: most, ended: false }
    }

    /// Chooses the next token, adds it, and returns it with the text that it completes; `None` for a token that ends the text, which is
    /// added, too. [`Session::generate`] and [`Session::stream`] do this in a loop; this function is for programs that use the session
    /// between two tokens, and keep the decoder.
    ///
    /// `more` says that the program will request the token after this one with the same sampler. A GPU may then begin to compute it
    /// before this token is read. If the program does something else instead, only that computation is lost.
    ///
    /// # Errors
    /// The errors of [`Session::sample_async`].
    pub async fn next_async(
        &mut self,
        sampler: &Sampler,
        decoder: &mut Decoder<'_>,
        more: bool,
    ) -> Result<Option<Generated>> {
        self.next_waiting(sampler, decoder, more, Waiting::Elsewhere).await
    }

    async fn next_waiting(
        &mut self,
        sampler: &Sampler,
        decoder: &mut Decoder<'_>,
        more: bool,
        waiting: Waiting,
    ) -> Result<Option<Generated>> {
        let token = self.sample_waiting(sampler, more, waiting).await?;
        let ends = self.model.tokenizer().is_end(token);
        Ok((!ends).then(|| Generated { token, text: decoder.push(token).to_owned() }))
    }

    /// The plan of its memory on each device, and of the placement of its layers; `None` on an engine without GPUs, for which only
    /// [`Model::memory_plan`] makes a plan.
    pub fn memory_plan(&self) -> Option<&MemoryPlan> {
        self.planned.as_ref()
    }

    /// Explains where a token is computed, and why.
    ///
    /// # Errors
    /// [`Error::Kiln`].
    pub fn explain(&mut self) -> Result<Explanation> {
        self.step(1)?.explain()
    }

    /// Computes the tokens that are not in the caches, without the logits after them.
    pub(crate) fn fill(&mut self) -> Result<()> {
        if self.cached == self.tokens.len() {
            return Ok(());
        }
        wait(async {
            let last = self.before_last(WAITING).await?;
            self.last_step(&last)?.extend(&last.tokens, last.before, WAITING).await?;
            self.cached = self.tokens.len();
            Ok(())
        })
    }

    /// The keys and values of each layer, `[kv_heads, context, size]`: complete after [`Self::fill`].
    pub(crate) fn caches(&self) -> &[[State; 2]] {
        &self.caches
    }

    /// Returns the time of each kernel of the graph that computed the last tokens (all of a prompt of up to 1024 tokens, or one sampled
    /// token), on the GPU that ran it.
    ///
    /// # Errors
    /// [`Error::Kiln`] if the engine does not time kernels (`kiln::EngineBuilder::time_kernels`), or if several devices or the CPU
    /// computed them; [`Error::Model`] before the first computation.
    #[cfg(not(browser_gpu))]
    pub fn profile(&self) -> Result<kiln::KernelProfile> {
        let last = self.steps.iter().find(|step| Some(step.rows()) == self.last);
        last.ok_or_else(|| Error::model("session", "nothing was computed yet; push a prompt and sample a token"))?
            .profile()
    }

    /// Computes the tokens that are not in the caches except the last part of them, and returns this part. If all are in
    /// the caches, it is the last token, which is then computed again.
    async fn before_last(&mut self, waiting: Waiting) -> Result<LastPart> {
        if self.tokens.is_empty() {
            return Err(Error::model("session", "it has 0 tokens, 1 or more are needed; push a prompt first"));
        }
        self.cached = self.cached.min(self.tokens.len() - 1);
        // Its input would be replaced.
        self.begun = None;
        while self.compute_part(waiting).await? > 0 {}
        Ok(LastPart { tokens: self.tokens[self.cached..].to_vec(), before: self.cached })
    }

    /// Computes the first part of the tokens that are not in the caches, unless it is the last part, and returns how many tokens are
    /// in neither.
    async fn compute_part(&mut self, waiting: Waiting) -> Result<usize> {
        let left = |session: &Self| {
            let rest = session.tokens.len() - session.cached;
            (session.parts.rows_for(rest), rest)
        };
        let (rows, rest) = left(self);
        if rows >= rest {
            return Ok(0);
        }
        let (tokens, before) = (self.tokens[self.cached..self.cached + rows].to_vec(), self.cached);
        self.step(rows)?.extend(&tokens, before, waiting).await?;
        self.cached += rows;
        let (rows, rest) = left(self);
        Ok(if rows >= rest { 0 } else { rest })
    }

    /// The graph of the last part.
    fn last_step(&mut self, last: &LastPart) -> Result<&mut Step<'m>> {
        let rows = self.parts.rows_for(last.tokens.len());
        self.last = Some(rows);
        self.step(rows)
    }

    /// The forward pass of this many tokens.
    fn forward(&self, rows: usize) -> Result<Forward<'m>> {
        let Model { engine, config, weights, .. } = self.model;
        let of = Recorded { adapters: self.adapters.as_ref(), layer: None, placing: Some(&self.placing) };
        Forward::record(engine, config, weights, of, &self.caches, self.context, rows)
    }

    /// The graph of this many rows, recorded if it is not cached.
    fn step(&mut self, rows: usize) -> Result<&mut Step<'m>> {
        let at = match self.steps.iter().position(|step| step.rows() == rows) {
            Some(at) => at,
            None => {
                let Model { config, weights, .. } = self.model;
                self.steps.push(Step::record(self.forward(rows)?, config, weights)?);
                self.steps.len() - 1
            }
        };
        Ok(&mut self.steps[at])
    }
}

/// A token that a model made, and the text that it completes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Generated {
    /// The token.
    pub token: u32,
    /// The text that this token completes: a character whose last bytes are missing comes with a later token, or as a replacement character
    /// with the last requested token.
    pub text: String,
}

/// An iterator over the tokens that a model generates: see [`Session::generate`]. A token that ends the text is added to the session,
/// but not returned. In pages, where nothing can block, use [`Session::stream`] or [`Generation::next_async`] instead.
#[derive(Debug)]
pub struct Generation<'s, 'm> {
    session: &'s mut Session<'m>,
    sampler: &'s Sampler,
    decoder: Decoder<'m>,
    left: usize,
    ended: bool,
}

#[cfg(not(browser_gpu))]
impl Iterator for Generation<'_, '_> {
    type Item = Result<Generated>;

    fn next(&mut self) -> Option<Self::Item> {
        // The future completes at its first poll.
        wait(async { Ok(self.next_waiting(WAITING).await) }).unwrap_or_else(|error: Error| Some(Err(error)))
    }
}

impl Generation<'_, '_> {
    /// Returns the next token, or `None` after the last.
    pub async fn next_async(&mut self) -> Option<Result<Generated>> {
        self.next_waiting(Waiting::Elsewhere).await
    }

    async fn next_waiting(&mut self, waiting: Waiting) -> Option<Result<Generated>> {
        if self.ended || self.left == 0 {
            return None;
        }
        self.left -= 1;
        let more = self.left > 0;
        let mut made = self.session.next_waiting(self.sampler, &mut self.decoder, more, waiting).await.transpose();
        if let (false, Some(Ok(last))) = (more, &mut made) {
            last.text.push_str(self.decoder.finish());
        }
        self.ended = !matches!(made, Some(Ok(_)));
        made
    }
}
