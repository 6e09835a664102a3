//! Asynchronous streams of tokens.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use futures_core::Stream;
use futures_core::stream::FusedStream;

use crate::{Generated, Generation, Result, Sampler, Session};

/// The future of the next token, which owns the generation until it is complete.
#[cfg(not(target_arch = "wasm32"))]
type Next<'s, 'm> = Pin<Box<dyn Future<Output = Following<'s, 'm>> + Send + 's>>;

/// The same in a browser, whose futures stay on their thread.
#[cfg(target_arch = "wasm32")]
type Next<'s, 'm> = Pin<Box<dyn Future<Output = Following<'s, 'm>> + 's>>;

type Following<'s, 'm> = (Generation<'s, 'm>, Option<Result<Generated>>);

/// A stream of the tokens that a model generates, for asynchronous programs: see [`Session::stream`](crate::Session::stream).
///
/// It yields the items of the iterator [`Generation`], natively and in browsers, and ends after an error. The tokens before an error are
/// in the session, and their texts were yielded.
///
/// Dropping it cancels the generation, also while a token is computed: the session then has the yielded tokens, and can continue
/// after them.
///
/// The CPU does not compute between polls; a GPU computes while the stream is pending. The CPU computes during the poll, so a poll takes
/// as long as a token: run it on a thread that may block, and in a page wait for the browser between tokens, as `kiln::runtime::pause`
/// does.
#[must_use = "a stream computes nothing unless it is polled"]
pub struct GenerationStream<'s, 'm> {
    /// `None` after the last token.
    next: Option<Next<'s, 'm>>,
}

impl<'m> Session<'m> {
    /// Generates the tokens of [`Session::generate`] as an asynchronous stream.
    ///
    /// ```
    /// use futures_util::StreamExt;
    /// use kiln_llm::{Model, Sampler, SessionOptions};
    ///
    /// # include!(concat!(env!("CARGO_MANIFEST_DIR"), "/tests/support/chain.rs"));
    /// # fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let tokens = [("a", 1), ("b", 1), ("c", 1)];
    /// # let path = chain("doc-stream", &tokens, &[(3, 4, 9.0), (4, 5, 9.0), (5, 2, 9.0)], &[]);
    /// let engine = kiln::Engine::new()?;
    /// let model = Model::load(&engine, &path)?;
    /// let mut session = model.session(SessionOptions::default())?;
    /// session.push(&model.tokenizer().encode("a"))?;
    /// let answer: kiln_llm::Result<String> = pollster::block_on(async {
    ///     let sampler = Sampler::greedy();
    ///     let mut stream = session.stream(&sampler, 100);
    ///     let mut answer = String::new();
    ///     while let Some(made) = stream.next().await {
    ///         answer += &made?.text;
    ///     }
    ///     Ok(answer)
    /// });
    /// assert_eq!(answer?, "bc");
    /// # std::fs::remove_file(path)?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn stream<'s>(&'s mut self, sampler: &'s Sampler, most: usize) -> GenerationStream<'s, 'm> {
        GenerationStream::new(self.generate(sampler, most))
    }
}

impl<'s, 'm> GenerationStream<'s, 'm> {
    fn new(generation: Generation<'s, 'm>) -> Self {
        Self { next: Some(next(generation)) }
    }
}

fn next<'s, 'm>(mut generation: Generation<'s, 'm>) -> Next<'s, 'm> {
    Box::pin(async move {
        let made = generation.next_async().await;
        (generation, made)
    })
}

impl Stream for GenerationStream<'_, '_> {
    type Item = Result<Generated>;

    fn poll_next(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Option<Self::Item>> {
        let Some(computing) = &mut self.next else { return Poll::Ready(None) };
        let (generation, made) = ready!(computing.as_mut().poll(context));
        self.next = made.is_some().then(|| next(generation));
        Poll::Ready(made)
    }
}

impl FusedStream for GenerationStream<'_, '_> {
    fn is_terminated(&self) -> bool {
        self.next.is_none()
    }
}

impl std::fmt::Debug for GenerationStream<'_, '_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("GenerationStream").field("is_terminated", &self.is_terminated()).finish_non_exhaustive()
    }
}
