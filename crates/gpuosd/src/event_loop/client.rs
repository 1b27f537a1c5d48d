//! A client that waits for its answer.

use std::sync::mpsc::SyncSender;

use gpuos_core::wire::Reply;

/// Where an answer goes, with what a step is told before all else.
#[derive(Debug)]
pub struct Client {
    reply: Option<SyncSender<Reply>>,
    notes: Vec<String>,
}

impl Client {
    /// One that waits at the other end of this channel.
    pub fn new(reply: SyncSender<Reply>) -> Client {
        Client {
            reply: Some(reply),
            notes: Vec::new(),
        }
    }

    /// The same, a step that is told these sentences, whatever its answer is.
    pub fn with_notes(mut self, notes: Vec<String>) -> Client {
        self.notes = notes;
        self
    }

    /// Answers. It waits for nobody: a client that has gone is not told.
    pub fn answer(mut self, reply: Reply) {
        self.send(Some(reply));
    }

    fn send(&mut self, told: Option<Reply>) {
        let Some(to) = self.reply.take() else {
            return;
        };
        let notes = std::mem::take(&mut self.notes);
        let told = match told {
            told if notes.is_empty() => told,
            Some(Reply::Prepared {
                notes: own,
                environment,
                failed,
            }) => Some(Reply::Prepared {
                notes: notes.into_iter().chain(own).collect(),
                environment,
                failed,
            }),
            Some(other @ Reply::Refused { .. }) => Some(other),
            _ => Some(Reply::Prepared {
                notes,
                environment: Default::default(),
                failed: None,
            }),
        };
        if let Some(told) = told {
            let _ = to.try_send(told);
        }
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Nobody answers any more: what was left out is told all the same.
        self.send(None);
    }
}

/// A good answer.
pub fn done(message: &str) -> Reply {
    Reply::Done {
        message: message.into(),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use gpuos_core::wire::Code;

    use super::*;

    fn told(answer: impl FnOnce(Client)) -> Option<Reply> {
        let (to, from) = sync_channel(1);
        answer(Client::new(to).with_notes(vec!["MPS is not yours".into()]));
        from.try_recv().ok()
    }

    fn prepared(notes: &[&str]) -> Option<Reply> {
        Some(Reply::Prepared {
            notes: notes.iter().map(|note| note.to_string()).collect(),
            environment: Default::default(),
            failed: None,
        })
    }

    #[test]
    fn notes_stand_before_the_answer_and_are_told_without_one() {
        let own = |client: Client| {
            let own = prepared(&["300 W"]);
            client.answer(own.unwrap());
        };
        assert_eq!(told(own), prepared(&["MPS is not yours", "300 W"]));
        assert_eq!(
            told(|client| client.answer(done("noted"))),
            prepared(&["MPS is not yours"])
        );
        assert_eq!(told(drop), prepared(&["MPS is not yours"]));
        let no = || Reply::Refused {
            code: Code::Forbidden,
            message: "no".into(),
        };
        assert_eq!(told(|client| client.answer(no())), Some(no()));
        let (to, from) = sync_channel(1);
        drop(Client::new(to));
        assert!(from.try_recv().is_err(), "without notes nothing is told");
    }
}
