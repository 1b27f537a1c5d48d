//! Why a request is refused.

use gpuos_config::options::{OptionError, Sources};
use gpuos_model::messages::Message;

/// What is wrong with a request.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// The options are no options, or contradict each other.
    Invalid,
    /// No node or domain of the cluster could ever hold it.
    Impossible,
}

/// Why a request is refused, as a sentence for the person who made it.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Refusal {
    /// What is wrong.
    pub kind: Kind,
    /// The sentence.
    pub sentence: String,
    /// What it is made of, where it is about an option.
    error: Option<Box<OptionError>>,
}

impl From<OptionError> for Refusal {
    fn from(error: OptionError) -> Refusal {
        Refusal {
            kind: Kind::Invalid,
            sentence: error.to_string(),
            error: Some(Box::new(error)),
        }
    }
}

impl Refusal {
    /// A refusal of what could never be, and not of what it says.
    pub fn impossible(error: OptionError) -> Refusal {
        Refusal {
            kind: Kind::Impossible,
            ..error.into()
        }
    }

    /// A refusal that is about no option of gpuos.
    pub fn of_other(kind: Kind, sentence: Message) -> Refusal {
        Refusal {
            kind,
            sentence: sentence.into(),
            error: None,
        }
    }

    /// The same, naming where the option's value came from.
    pub fn named_by(self, sources: &Sources) -> Refusal {
        let Some(error) = self.error else {
            return self;
        };
        let source = sources.of(&error.option);
        Refusal {
            kind: self.kind,
            ..error.came_from(source).into()
        }
    }
}
