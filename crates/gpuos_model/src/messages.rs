//! Messages on which somebody acts, as tables: what stands in docs/reference/messages.md is what is said.
//!
//! [`messages!`](crate::messages!) makes a function of each row of a table, and a test of the crate puts the rows on the page.
use std::borrow::Borrow;
use std::fmt;
use std::ops::Deref;

/// A text that a table has, with its variable parts filled in. There is no other way to make one, so what takes a
/// message takes nothing that the page does not have.
#[derive(Clone, Eq, Debug)]
pub struct Message(String);

impl Message {
    /// For [`messages!`](crate::messages!) alone.
    #[doc(hidden)]
    pub fn of_table(text: String) -> Message {
        Message(text)
    }
}

impl fmt::Display for Message {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl Deref for Message {
    type Target = str;

    fn deref(&self) -> &str {
        &self.0
    }
}

/// For lists that are joined.
impl Borrow<str> for Message {
    fn borrow(&self) -> &str {
        &self.0
    }
}

impl<T: AsRef<str>> PartialEq<T> for Message {
    fn eq(&self, other: &T) -> bool {
        self.0 == other.as_ref()
    }
}

impl AsRef<str> for Message {
    fn as_ref(&self) -> &str {
        &self.0
    }
}

impl From<Message> for String {
    fn from(message: Message) -> String {
        message.0
    }
}

/// A row of a table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// The function that says it; empty where there is none.
    pub name: &'static str,
    /// The text, with its variable parts as `{name}`.
    pub text: &'static str,
    /// What it means.
    pub means: &'static str,
    /// What to do.
    pub action: &'static str,
}

/// Makes a table of messages. A row is a function, whose docstring says what the message means, then its text, and what
/// to do. `ROWS` is there in tests.
///
/// ```
/// gpuos_model::messages! {
///     /// The file cannot be read as slurmctld's user.
///     pub fn unreadable(path, why) = "cannot read {path}: {why}", "Give the file to SlurmUser.";
/// }
/// assert_eq!(&*unreadable("/x", "denied"), "cannot read /x: denied");
/// ```
#[macro_export]
macro_rules! messages {
    ($(
        $(#[doc = $means:literal])+
        $visible:vis fn $name:ident($($part:ident),*) = $text:literal, $action:literal;
    )+) => {
        $(
            $(#[doc = $means])+
            $visible fn $name($($part: impl ::std::fmt::Display),*) -> $crate::messages::Message {
                $crate::messages::Message::of_table(::std::format!($text))
            }
        )+

        /// All messages of this table, in its order.
        #[cfg(test)]
        pub const ROWS: &[$crate::messages::Row] = &[$(
            $crate::messages::Row {
                name: ::std::stringify!($name),
                text: $text,
                means: ::std::concat!($($means),+),
                action: $action,
            },
        )+];
    };
}
