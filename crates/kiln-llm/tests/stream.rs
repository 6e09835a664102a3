//! Tokens with their texts as asynchronous streams.

use std::pin::Pin;

use futures_util::stream::FusedStream;
use futures_util::{Stream, StreamExt};
use kiln::Engine;
use kiln_llm::{Error, Generated, Model, Result, Sampler, Session, SessionOptions};
use pollster::block_on;

use crate::support::chain::chain;
use crate::support::random_model::{KINDS, RandomModel};

fn engine() -> Engine {
    Engine::builder().without_profile().build().unwrap()
}

/// A file that is removed again, and its model.
fn with_model(path: std::path::PathBuf, test: impl FnOnce(&Model<'_>)) {
    let engine = engine();
    let model = Model::load(&engine, &path).unwrap();
    test(&model);
    std::fs::remove_file(path).unwrap();
}

fn session<'m>(model: &'m Model<'m>, prompt: &[u32]) -> Session<'m> {
    let options = SessionOptions { context: Some(40), ..SessionOptions::default() };
    let mut session = model.session(options).unwrap();
    session.push(prompt).unwrap();
    session
}

#[test]
fn a_stream_yields_what_the_iterator_yields() {
    let sampler = Sampler { temperature: 1.5, seed: 3, ..Sampler::default() };
    with_model(RandomModel::new(KINDS[0]).save("stream"), |model| {
        let [mut streamed, mut iterated] = [session(model, &[1, 6]), session(model, &[1, 6])];
        for most in [0, 1, 7] {
            let from_stream: Vec<Generated> = block_on(streamed.stream(&sampler, most).map(Result::unwrap).collect());
            let from_iterator: Vec<Generated> = iterated.generate(&sampler, most).map(Result::unwrap).collect();
            assert_eq!(from_stream, from_iterator);
            assert_eq!(streamed.tokens(), iterated.tokens());
        }
        assert!(streamed.tokens().len() > 2);
    });
}

/// Two bytes of ä, which are one character; then the end.
#[test]
fn a_character_comes_with_its_last_byte_and_the_stream_ends_with_the_text() {
    let path = chain(
        "stream-character",
        &[("a", 1), ("<0xC3>", 6), ("<0xA4>", 6)],
        &[(3, 4, 9.0), (4, 5, 9.0), (5, 2, 9.0)],
        &[],
    );
    with_model(path, |model| {
        let mut session = session(model, &[1, 3]);
        let sampler = Sampler::greedy();
        let mut stream = session.stream(&sampler, 9);
        let made = |token: u32, text: &str| Some(Generated { token, text: text.into() });
        block_on(async {
            assert_eq!(stream.next().await.transpose().unwrap(), made(4, ""));
            assert_eq!(stream.next().await.transpose().unwrap(), made(5, "ä"));
            assert!(stream.next().await.is_none() && stream.is_terminated());
            assert!(stream.next().await.is_none());
        });
        drop(stream);
        // The token that ends the text is in the session.
        assert_eq!(session.tokens(), [1, 3, 4, 5, 2]);
        // Cut within the character.
        session.truncate(2);
        let cut: Vec<Generated> = session.generate(&sampler, 1).map(Result::unwrap).collect();
        assert_eq!(cut, [Generated { token: 4, text: "\u{fffd}".into() }]);
    });
}

#[test]
fn an_error_ends_the_stream_after_the_text_before_it() {
    let path = chain("stream-error", &[("a", 1), ("b", 1)], &[(3, 4, 9.0), (4, 3, 9.0)], &[]);
    with_model(path, |model| {
        let mut session = session(model, &[1, 3]);
        let sampler = Sampler::greedy();
        let made: Vec<Result<Generated>> = block_on(session.stream(&sampler, 99).collect());
        let (last, before) = made.split_last().unwrap();
        let text: String = before.iter().map(|made| &*made.as_ref().unwrap().text).collect();
        assert_eq!(text, "ba".repeat(19));
        assert!(matches!(last, Err(Error::ContextFull { context: 40, asked: 41 })), "{last:?}");
        assert_eq!(session.tokens().len(), 40);
    });
}

#[test]
fn dropping_cancels() {
    with_model(RandomModel::new(KINDS[0]).save("stream-dropped"), |model| {
        let sampler = Sampler { temperature: 1.5, seed: 5, ..Sampler::default() };
        let [mut session, mut whole] = [session(model, &[1, 6, 7]), session(model, &[1, 6, 7])];
        let expected: Vec<u32> = whole.generate(&sampler, 6).map(|made| made.unwrap().token).collect();
        assert!(expected.len() > 3, "{expected:?}");
        // A stream that was never polled computes nothing.
        drop(session.stream(&sampler, 6));
        assert_eq!(session.tokens(), [1, 6, 7]);
        let mut stream = session.stream(&sampler, 6);
        let two: Vec<u32> = block_on(stream.by_ref().take(2).map(|made| made.unwrap().token).collect());
        drop(stream);
        assert_eq!((&two[..], &session.tokens()[3..]), (&expected[..2], &expected[..2]));
        let rest: Vec<u32> = session.generate(&sampler, expected.len() - 2).map(|made| made.unwrap().token).collect();
        assert_eq!(rest, expected[2..]);
    });
}

/// Servers move streams between threads, and keep them behind pointers.
#[test]
fn streams_may_move() {
    fn is_movable(_: Pin<Box<dyn Stream<Item = Result<Generated>> + Send + Unpin + '_>>) {}
    with_model(RandomModel::new(KINDS[0]).save("stream-moved"), |model| {
        let sampler = Sampler::greedy();
        is_movable(Box::pin(session(model, &[1]).stream(&sampler, 1)));
    });
}
