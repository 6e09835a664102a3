//! The task that owns a model and its sessions, and answers requests.

use std::collections::BTreeMap;
use std::rc::Rc;

use js_sys::{Array, Object, Uint32Array};
use kiln_llm::{
    Channel, Decoder, Encoding, Error, Generated, Message, Model, Reply, Result, Sampler, Session, SessionOptions,
};
use wasm_bindgen::{JsCast, JsValue};

use super::Loading;
use super::requests::{Kind, Request, Requests};
use crate::error::parameter;
use crate::js::{Options, explained, member, required, set};

/// A session, and the incomplete text of its last tokens.
struct Open<'m> {
    session: Session<'m>,
    decoder: Decoder<'m>,
    /// The reply to a conversation, whose text it separates by channels.
    reply: Option<Reply<'m>>,
}

/// The name of a channel in JavaScript.
fn channel_name(channel: Channel) -> &'static str {
    match channel {
        Channel::Thinking => "thinking",
        Channel::ToolCall => "tool-call",
        _ => "answer",
    }
}

/// Loads the model, and answers requests until it is closed.
pub(super) async fn serve(loading: Loading, requests: Rc<Requests>) {
    let Loading { loader, engine, .. } = loading;
    let ready = requests.next().await;
    let model = match (loader.finish(&engine), ready) {
        (Ok(model), Some(ready)) => {
            ready.answer(Ok(JsValue::UNDEFINED));
            model
        }
        (Err(error), Some(ready)) => {
            requests.close();
            return ready.answer(Err(error));
        }
        (_, None) => return,
    };
    let mut sessions = Sessions { model: &model, open: BTreeMap::new(), next: 0 };
    while let Some(request) = requests.next().await {
        let answer = match request.kind {
            Kind::Destroy => destroy(&engine).await,
            _ => sessions.answer(&request).await,
        };
        request.answer(answer);
    }
}

/// Ends the device of the GPU.
#[cfg(feature = "webgpu")]
async fn destroy(engine: &kiln::Engine) -> Result<JsValue> {
    engine.gpu_devices_async().await?.iter().for_each(kiln::gpu::GpuDevice::destroy);
    Ok(JsValue::UNDEFINED)
}

#[cfg(not(feature = "webgpu"))]
async fn destroy(_: &kiln::Engine) -> Result<JsValue> {
    Ok(JsValue::UNDEFINED)
}

/// The sessions of a model.
struct Sessions<'m> {
    model: &'m Model<'m>,
    open: BTreeMap<usize, Open<'m>>,
    next: usize,
}

impl<'m> Sessions<'m> {
    async fn answer(&mut self, request: &Request) -> Result<JsValue> {
        let options = Options(&request.of);
        match request.kind {
            Kind::Ready => Ok(JsValue::UNDEFINED),
            Kind::Open => self.begin(&options),
            Kind::End => {
                self.open.remove(&number(&options)?);
                Ok(JsValue::UNDEFINED)
            }
            Kind::Push => self.push(&options),
            Kind::Chat => self.chat(&options),
            Kind::Prefill => Ok(JsValue::from_f64(self.open(&options)?.session.prefill_async().await? as f64)),
            Kind::Next => self.token(&options).await,
            Kind::Tokens => Ok(Uint32Array::from(self.open(&options)?.session.tokens()).into()),
            Kind::Truncate => {
                let keep = options.whole("truncate", "keep")?.unwrap_or(0);
                let decoder = self.model.tokenizer().decoder();
                let open = self.open(&options)?;
                open.session.truncate(keep);
                (open.decoder, open.reply) = (decoder, None);
                Ok(JsValue::UNDEFINED)
            }
            Kind::Explain => Ok(explained(&self.open(&options)?.session.explain()?)),
            // Answered without the sessions.
            Kind::Destroy => Ok(JsValue::UNDEFINED),
        }
    }

    fn open(&mut self, options: &Options<'_>) -> Result<&mut Open<'m>> {
        let number = number(options)?;
        self.open.get_mut(&number).ok_or_else(|| parameter("session", "it has ended; make another").into())
    }

    fn begin(&mut self, options: &Options<'_>) -> Result<JsValue> {
        let context = options.whole("session", "context")?;
        let session = self.model.session(SessionOptions { context, ..SessionOptions::default() })?;
        let object = Object::new();
        set(&object, "session", self.next as f64);
        set(&object, "context", session.context() as f64);
        self.open.insert(self.next, Open { session, decoder: self.model.tokenizer().decoder(), reply: None });
        self.next += 1;
        Ok(object.into())
    }

    fn push(&mut self, options: &Options<'_>) -> Result<JsValue> {
        let text = required(options.text("text"), "prompt", "text")?;
        let tokenizer = self.model.tokenizer();
        let decoder = tokenizer.decoder();
        let open = self.open(options)?;
        // The begin-of-text token precedes only the first text.
        let first = open.session.tokens().is_empty();
        let tokens = tokenizer.encode_with(&text, Encoding { add_special: first, ..Encoding::default() });
        open.session.push(&tokens)?;
        (open.decoder, open.reply) = (decoder, None);
        Ok(JsValue::from_f64(open.session.tokens().len() as f64))
    }

    fn chat(&mut self, options: &Options<'_>) -> Result<JsValue> {
        let wrong = || parameter("chat", "messages are an array of { role, content }");
        let messages = member(options.0, "messages").ok_or_else(wrong)?;
        let messages: &Array = messages.dyn_ref().ok_or_else(wrong)?;
        let mut list = Vec::with_capacity(messages.length() as usize);
        for message in messages.iter() {
            let of = Options(&message);
            list.push(Message::new(of.text("role").ok_or_else(wrong)?, of.text("content").ok_or_else(wrong)?));
        }
        let tokenizer = self.model.tokenizer();
        let tokens = self.model.chat_template(None)?.encode(tokenizer, &list, true)?;
        let open = self.open(options)?;
        open.session.replace(&tokens)?;
        (open.decoder, open.reply) = (tokenizer.decoder(), Some(Reply::new(tokenizer, &tokens)));
        Ok(JsValue::from_f64(tokens.len() as f64))
    }

    async fn token(&mut self, options: &Options<'_>) -> Result<JsValue> {
        let sampler = sampler(options)?;
        let Open { session, decoder, reply } = self.open(options)?;
        let more = options.flag("more");
        let Some(Generated { token, text }) = session.next_async(&sampler, decoder, more).await? else {
            return Ok(JsValue::UNDEFINED);
        };
        let object = Object::new();
        set(&object, "token", token);
        match reply.as_mut().map(|reply| reply.push(token)) {
            Some((channel, text)) => {
                set(&object, "text", text);
                set(&object, "channel", channel_name(channel));
            }
            None => set(&object, "text", &*text),
        }
        Ok(object.into())
    }
}

fn number(options: &Options<'_>) -> Result<usize> {
    Ok(required(options.whole("session", "session")?, "session", "session")?)
}

/// The sampler of a request; missing options have the defaults of [`Sampler`].
fn sampler(options: &Options<'_>) -> Result<Sampler, Error> {
    let usual = Sampler::default();
    let number = |name| options.number("generate", name);
    Ok(Sampler {
        temperature: number("temperature")?.unwrap_or(usual.temperature),
        top_k: options.whole("generate", "topK")?.unwrap_or(usual.top_k),
        top_p: number("topP")?.unwrap_or(usual.top_p),
        min_p: number("minP")?.unwrap_or(usual.min_p),
        repeat_penalty: number("repeatPenalty")?.unwrap_or(usual.repeat_penalty),
        seed: options.whole("generate", "seed")?.map_or(usual.seed, |seed| seed as u64),
        ..usual
    })
}
