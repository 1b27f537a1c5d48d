//! Forms that earlier releases wrote: what they have, as it is now.

use std::borrow::Cow;

use serde::Deserialize;

use super::event::{Asked, By, Event, Purpose};
use super::model::Model;
use crate::plan::{Choice, Never, Request, Unit, Wait};

/// From this form on the gangs on the network are recorded.
const NETWORK: u32 = 4;
/// From this form on what can never fit says why in numbers.
const NUMBERS: u32 = 6;
/// The number of [`Event::Asked`], the one event that has changed.
const ASKED: u8 = 2;

/// A question in form 3.
#[derive(Deserialize)]
struct Asked3 {
    job: u32,
    purpose: Purpose,
    skip: u32,
    request: Request,
    answer: Result<Choice, Wait5>,
    at: u64,
}

/// A question in the forms 4 and 5.
#[derive(Deserialize)]
struct Asked5 {
    job: u32,
    purpose: Purpose,
    skip: u32,
    by: By,
    request: Request,
    answer: Result<Choice, Wait5>,
    at: u64,
}

/// A reason to wait up to form 5.
#[derive(Deserialize)]
enum Wait5 {
    Capacity {
        feasible_nodes: u32,
        needed_nodes: u32,
        free_gpus: u32,
        needed_gpus: u32,
    },
    Level {
        level: String,
        best_domain: String,
        unit: Unit,
        have: u32,
        need: u32,
    },
    UnknownLevel {
        level: String,
        known: Vec<String>,
    },
    Never {
        why: String,
    },
}

impl From<Wait5> for Wait {
    fn from(old: Wait5) -> Wait {
        match old {
            Wait5::Capacity {
                feasible_nodes,
                needed_nodes,
                free_gpus,
                needed_gpus,
            } => Wait::Capacity {
                feasible_nodes,
                needed_nodes,
                free_gpus,
                needed_gpus,
            },
            Wait5::Level {
                level,
                best_domain,
                unit,
                have,
                need,
            } => Wait::Level {
                level,
                best_domain,
                unit,
                have,
                need,
            },
            Wait5::UnknownLevel { level, known } => Wait::UnknownLevel { level, known },
            Wait5::Never { why } => Wait::Never {
                why: Never::Said(why),
            },
        }
    }
}

/// An event of that form; `None` when the bytes are none.
pub fn event(format: u32, bytes: &[u8]) -> Option<Event<'static>> {
    let old = match bytes.split_first() {
        Some((&ASKED, asked)) if format < NETWORK => {
            let old: Asked3 = postcard::from_bytes(asked).ok()?;
            Asked5 {
                job: old.job,
                purpose: old.purpose,
                skip: old.skip,
                by: By::Order,
                request: old.request,
                answer: old.answer,
                at: old.at,
            }
        }
        Some((&ASKED, asked)) if format < NUMBERS => postcard::from_bytes(asked).ok()?,
        _ => return postcard::from_bytes(bytes).ok(),
    };
    Some(Event::Asked(Asked {
        job: old.job,
        purpose: old.purpose,
        skip: old.skip,
        by: old.by,
        request: Cow::Owned(old.request),
        answer: match old.answer {
            Ok(choice) => Ok(Cow::Owned(choice)),
            Err(wait) => Err(Cow::Owned(wait.into())),
        },
        at: old.at,
    }))
}

/// A model of that form; `None` when the bytes are none.
pub fn model(format: u32, bytes: &[u8]) -> Option<Model<'static>> {
    if format >= NETWORK {
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
