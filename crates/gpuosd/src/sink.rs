//! Where a thread puts what it has to tell. It knows only its own answers; what they are to whoever takes them is said where the
//! thread is started.

use std::fmt;
use std::sync::Arc;
use std::sync::mpsc::{SyncSender, TrySendError};

trait SendConverted<T>: Send + Sync {
    fn send_converted(&self, told: T) -> bool;
    fn try_send_converted(&self, told: T) -> Result<(), NotTaken>;
}

impl<T, M: From<T> + Send> SendConverted<T> for SyncSender<M> {
    fn send_converted(&self, told: T) -> bool {
        self.send(told.into()).is_ok()
    }

    fn try_send_converted(&self, told: T) -> Result<(), NotTaken> {
        self.try_send(told.into()).map_err(|e| match e {
            TrySendError::Full(_) => NotTaken::Full,
            TrySendError::Disconnected(_) => NotTaken::Ended,
        })
    }
}

/// Why something was not taken.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum NotTaken {
    /// Too much waits.
    Full,
    /// Nobody takes anything any more.
    Ended,
}

/// One end of a bounded channel, for one kind of answers.
pub struct Sink<T>(Arc<dyn SendConverted<T>>);

impl<T> Clone for Sink<T> {
    fn clone(&self) -> Sink<T> {
        Sink(Arc::clone(&self.0))
    }
}

impl<T> fmt::Debug for Sink<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Sink")
    }
}

impl<T: 'static> Sink<T> {
    /// The end of a channel whose messages can be made of these answers.
    pub fn of<M: From<T> + Send + 'static>(to: &SyncSender<M>) -> Sink<T> {
        Sink(Arc::new(to.clone()))
    }

    /// Waits until there is room. Returns whether anybody listens still.
    pub fn send(&self, told: T) -> bool {
        self.0.send_converted(told)
    }

    /// The same without waiting.
    ///
    /// # Errors
    /// It is not taken.
    pub fn try_send(&self, told: T) -> Result<(), NotTaken> {
        self.0.try_send_converted(told)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::sync_channel;

    use super::*;

    #[test]
    fn answers_arrive_as_messages_and_a_full_or_ended_channel_is_told() {
        let (to, from) = sync_channel::<String>(1);
        let sink: Sink<char> = Sink::of(&to);
        assert_eq!(sink.try_send('a'), Ok(()));
        assert_eq!(sink.try_send('b'), Err(NotTaken::Full));
        assert_eq!(from.recv().as_deref(), Ok("a"));
        drop(from);
        assert_eq!(sink.try_send('c'), Err(NotTaken::Ended));
        assert!(!sink.send('d'));
    }
}
