//! Forms that earlier releases wrote: what they have, as it is now.

use std::borrow::Cow;

use serde::Deserialize;

use super::event::{Asked, By, Event, Outcome, Purpose};
use super::model::Model;
use crate::frag::Expected;
use crate::plan::{Choice, NodeState, Request, Wait};

/// A question in form 3.
#[derive(Deserialize)]
struct Asked3 {
    job: u32,
    purpose: Purpose,
    skip: u32,
    request: Request,
    answer: Result<Choice, Wait>,
    at: u64,
}

/// An event in form 3.
#[derive(Deserialize)]
enum Event3 {
    Nodes {
        from: u32,
        count: u32,
        state: NodeState,
    },
    Offered {
        from: u32,
        count: u32,
        yes: bool,
    },
    Asked(Asked3),
    Ended {
        job: u32,
        outcome: Outcome,
    },
    Learned(Expected),
}

/// An event of that form; `None` when the bytes are none.
pub fn event(format: u32, bytes: &[u8]) -> Option<Event<'static>> {
    if format != 3 {
        return postcard::from_bytes(bytes).ok();
    }
    Some(match postcard::from_bytes(bytes).ok()? {
        Event3::Nodes { from, count, state } => Event::Nodes { from, count, state },
        Event3::Offered { from, count, yes } => Event::Offered { from, count, yes },
        Event3::Ended { job, outcome } => Event::Ended { job, outcome },
        Event3::Learned(expected) => Event::Learned(Cow::Owned(expected)),
        Event3::Asked(asked) => Event::Asked(Asked {
            job: asked.job,
            purpose: asked.purpose,
            skip: asked.skip,
            by: By::Order,
            request: Cow::Owned(asked.request),
            answer: asked.answer.map(Cow::Owned).map_err(Cow::Owned),
            at: asked.at,
        }),
    })
}

/// A model of that form; `None` when the bytes are none.
pub fn model(format: u32, bytes: &[u8]) -> Option<Model<'static>> {
    if format != 3 {
        return postcard::from_bytes(bytes).ok();
    }
    let (types, nodes, fabric) = postcard::from_bytes(bytes).ok()?;
    Some(Model {
        types,
        nodes,
        fabric,
        net: None,
    })
}
