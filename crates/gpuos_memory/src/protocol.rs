//! What a program and gpuosd say to each other about memory: lines of words, on a socket.
//!
//! ```text
//!     program                                    gpuosd
//!     hello 1
//!     ask GPU BYTES HBM        ------>
//!                              <------   lease GPU HBM HOST REFUGE turn     or "wait"; "without GPU WHY"; "refused WHY"
//!                              <------   park DEADLINE_MS
//!     parked MS MOVED LEFT     ------>
//!                              <------   turn
//!     back MS MOVED            ------>
//!     idle, busy, pinned       ------>
//!                              <------   note TEXT
//!     bye                      ------>
//! ```
//!
//! After a connection was lost, `return working` or `return parked` comes between `hello` and `ask`.
//!
//! The library that speaks it is loaded into programs of users, so it brings no reader of JSON along. A GPU is its UUID, in 32 digits.

use std::fmt;

/// Version of the protocol: raised when a line changes its meaning.
pub const VERSION: u32 = 1;
/// The longest line in bytes, without its newline.
pub const MAX_LINE: usize = 400;

/// A GPU by the 16 bytes of its UUID.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Uuid(pub [u8; 16]);

/// What a program says.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum FromProgram {
    /// The first line.
    Hello {
        /// Version of the protocol.
        version: u32,
    },
    /// It wants so much memory of a GPU, in both tiers together.
    Ask {
        /// The GPU.
        gpu: Uuid,
        /// Bytes.
        bytes: u64,
        /// Bytes that the driver says the GPU has itself: what NVML shows is somewhat more.
        hbm: u64,
    },
    /// It was connected before, and says where its memory is.
    Return {
        /// All of it is in host memory, and it waits for its turn.
        parked: bool,
    },
    /// Nothing was called and no work was under way for some time.
    Idle,
    /// It works again, or waits for its turn to.
    Busy,
    /// It was told to park, and has.
    Parked {
        /// How long that took, in milliseconds.
        took_ms: u64,
        /// Bytes that went to host memory.
        moved: u64,
        /// Bytes that could not leave the memory of GPUs.
        left: u64,
    },
    /// It has its turn, and its memory is back.
    Back {
        /// How long that took, in milliseconds.
        took_ms: u64,
        /// Bytes that came from host memory.
        moved: u64,
    },
    /// Bytes that it has moved to host memory and back in all, parking among it.
    Moved {
        /// To host memory.
        down: u64,
        /// To the memory of GPUs.
        up: u64,
    },
    /// Nothing of it can be moved any more.
    Pinned,
    /// It goes: the connection ends as it should.
    Bye,
}

/// What gpuosd says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ToProgram {
    /// What the program may use of a GPU.
    Lease {
        /// The GPU.
        gpu: Uuid,
        /// Bytes of the GPU's own memory.
        hbm: u64,
        /// Bytes of host memory that the GPU reads in place.
        host: u64,
        /// Bytes of host memory beside these, for what is in the GPU's memory while it is another job's turn; 0: the GPU is not shared in turns.
        refuge: u64,
        /// It begins as one that is parked, until it is told [`ToProgram::Turn`].
        wait: bool,
    },
    /// The program gets nothing: why, in a sentence.
    Refused {
        /// The sentence.
        why: String,
    },
    /// It gets nothing of one GPU, which it has as the driver gives it.
    Without {
        /// The GPU.
        gpu: Uuid,
        /// Why, in a sentence.
        why: String,
    },
    /// Everything is to leave the memory of GPUs, and nothing to run until the next turn.
    Park {
        /// Within so many milliseconds.
        deadline_ms: u64,
    },
    /// It is the program's turn.
    Turn,
    /// A sentence for the program's user.
    Note {
        /// The sentence.
        text: String,
    },
}

/// A line that is no message.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct NoMessage;

impl fmt::Display for NoMessage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the line is no message about memory")
    }
}

impl std::error::Error for NoMessage {}

impl Uuid {
    /// From text: 32 digits of base 16, with or without `GPU-` in front and dashes between.
    pub fn parse(text: &str) -> Option<Uuid> {
        let text = text.strip_prefix("GPU-").unwrap_or(text);
        let mut bytes = [0; 16];
        let mut count = 0;
        for byte in text.bytes().filter(|byte| *byte != b'-') {
            let digit = char::from(byte).to_digit(16)? as u8;
            let place = bytes.get_mut(count / 2)?;
            *place = *place << 4 | digit;
            count += 1;
        }
        (count == 32).then_some(Uuid(bytes))
    }
}

impl fmt::Display for Uuid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// The words of a line that has the right characters and length.
fn words(line: &[u8]) -> Result<Vec<&str>, NoMessage> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.len() > MAX_LINE || line.iter().any(u8::is_ascii_control) {
        return Err(NoMessage);
    }
    let text = std::str::from_utf8(line).map_err(|_| NoMessage)?;
    Ok(text.split(' ').collect())
}

/// A number in digits alone: no sign, no blank.
fn number(word: &str) -> Result<u64, NoMessage> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = word.parse().ok().filter(|_| digits);
    number.ok_or(NoMessage)
}

/// A sentence as one line that is not too long: what would not show, or could end it, is left out.
fn sentence(text: &str) -> String {
    let mut all = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if all.len() + letter.len_utf8() > MAX_LINE - 48 {
            break;
        }
        all.push(letter);
    }
    all
}

impl FromProgram {
    /// The message of a line, with or without its newline.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(line: &[u8]) -> Result<FromProgram, NoMessage> {
        Ok(match words(line)?[..] {
            ["hello", version] => FromProgram::Hello {
                version: number(version)?.try_into().map_err(|_| NoMessage)?,
            },
            ["ask", gpu, bytes, hbm] => FromProgram::Ask {
                gpu: Uuid::parse(gpu).ok_or(NoMessage)?,
                bytes: number(bytes)?,
                hbm: number(hbm)?,
            },
            ["return", place @ ("working" | "parked")] => FromProgram::Return {
                parked: place == "parked",
            },
            ["idle"] => FromProgram::Idle,
            ["busy"] => FromProgram::Busy,
            ["parked", took, moved, left] => FromProgram::Parked {
                took_ms: number(took)?,
                moved: number(moved)?,
                left: number(left)?,
            },
            ["back", took, moved] => FromProgram::Back {
                took_ms: number(took)?,
                moved: number(moved)?,
            },
            ["moved", down, up] => FromProgram::Moved {
                down: number(down)?,
                up: number(up)?,
            },
            ["pinned"] => FromProgram::Pinned,
            ["bye"] => FromProgram::Bye,
            _ => return Err(NoMessage),
        })
    }

    /// The line, with its newline.
    pub fn line(&self) -> String {
        match self {
            FromProgram::Hello { version } => format!("hello {version}\n"),
            FromProgram::Ask { gpu, bytes, hbm } => format!("ask {gpu} {bytes} {hbm}\n"),
            FromProgram::Return { parked: true } => "return parked\n".into(),
            FromProgram::Return { parked: false } => "return working\n".into(),
            FromProgram::Idle => "idle\n".into(),
            FromProgram::Busy => "busy\n".into(),
            FromProgram::Parked {
                took_ms,
                moved,
                left,
            } => format!("parked {took_ms} {moved} {left}\n"),
            FromProgram::Back { took_ms, moved } => format!("back {took_ms} {moved}\n"),
            FromProgram::Moved { down, up } => format!("moved {down} {up}\n"),
            FromProgram::Pinned => "pinned\n".into(),
            FromProgram::Bye => "bye\n".into(),
        }
    }
}

impl ToProgram {
    /// The message of a line, with or without its newline.
    ///
    /// # Errors
    /// It is none.
    pub fn parse(line: &[u8]) -> Result<ToProgram, NoMessage> {
        let words = words(line)?;
        Ok(match words[..] {
            ["lease", gpu, hbm, host, refuge, turn @ ("turn" | "wait")] => ToProgram::Lease {
                gpu: Uuid::parse(gpu).ok_or(NoMessage)?,
                hbm: number(hbm)?,
                host: number(host)?,
                refuge: number(refuge)?,
                wait: turn == "wait",
            },
            ["refused", ..] => ToProgram::Refused {
                why: words[1..].join(" "),
            },
            ["without", gpu, ..] => ToProgram::Without {
                gpu: Uuid::parse(gpu).ok_or(NoMessage)?,
                why: words[2..].join(" "),
            },
            ["park", deadline] => ToProgram::Park {
                deadline_ms: number(deadline)?,
            },
            ["turn"] => ToProgram::Turn,
            ["note", ..] => ToProgram::Note {
                text: words[1..].join(" "),
            },
            _ => return Err(NoMessage),
        })
    }

    /// The line, with its newline. A sentence that is too long is cut.
    pub fn line(&self) -> String {
        match self {
            ToProgram::Lease {
                gpu,
                hbm,
                host,
                refuge,
                wait,
            } => {
                let turn = if *wait { "wait" } else { "turn" };
                format!("lease {gpu} {hbm} {host} {refuge} {turn}\n")
            }
            ToProgram::Refused { why } => format!("refused {}\n", sentence(why)),
            ToProgram::Without { gpu, why } => format!("without {gpu} {}\n", sentence(why)),
            ToProgram::Park { deadline_ms } => format!("park {deadline_ms}\n"),
            ToProgram::Turn => "turn\n".into(),
            ToProgram::Note { text } => format!("note {}\n", sentence(text)),
        }
    }
}

/// Bytes as they come, cut into lines. What it holds is bounded.
#[derive(Clone, Default, Debug)]
pub struct Lines(Vec<u8>);

impl Lines {
    /// Takes bytes in.
    pub fn push(&mut self, bytes: &[u8]) {
        self.0.extend_from_slice(bytes);
    }

    /// The next whole line, without its newline. `None`: more bytes are needed.
    ///
    /// # Errors
    /// A line is too long: the connection has to end.
    pub fn next_line(&mut self) -> Result<Option<Vec<u8>>, NoMessage> {
        match self.0.iter().position(|byte| *byte == b'\n') {
            Some(at) if at > MAX_LINE => Err(NoMessage),
            Some(at) => {
                let rest = self.0.split_off(at + 1);
                let mut line = std::mem::replace(&mut self.0, rest);
                line.pop();
                Ok(Some(line))
            }
            None if self.0.len() > MAX_LINE => Err(NoMessage),
            None => Ok(None),
        }
    }
}
