//! What a program and gpuosd say to each other about memory: lines of words, on a socket.
//!
//! ```text
//!     program                                    gpuosd
//!     hello 3
//!     ask GPU BYTES HBM        ------>
//!                              <------   lease GPU HBM HOST REFUGE turn     or "wait"; "without GPU WHY"; "refused WHY"; "denied WHY"
//!                              <------   park DEADLINE_MS
//!     parked MS MOVED LEFT     ------>
//!                              <------   stow DEADLINE_MS BYTES all|part MOVER
//!     parked ..., or not-parked ----->
//!                              <------   demote DEADLINE_MS BYTES MOVER
//!     demoted BYTES            ------>
//!                              <------   turn
//!     back MS MOVED            ------>
//!     working                  ------>
//!     idle, busy, pinned       ------>
//!                              <------   note TEXT
//!                              <------   pressure node                      or "pressure job", "pressure calm"
//!                              <------   trim DEADLINE_MS
//!     demoted BYTES            ------>
//!                              <------   budget GPU BYTES_A_SECOND
//!     figures HOT WARM ...     ------>
//!     bye                      ------>
//! ```
//!
//! After a connection was lost, `return working`, `return parked` or `return stowed` comes between `hello` and `ask`. MOVER is the path of
//! gpuos_mover's socket for what goes to NVMe, to the end of the line: [`crate::stow`].
//! `working` comes each second while what was told to the process waits for work that was given to its GPUs before.
//! Who says `hello 1` is told nothing of `pressure`, `trim` and `budget`: it is a library of an earlier release, in a container for
//! example. A gpuosd of an earlier release refuses `hello 3`, and is asked again by the next older one. A `lease` that comes later has another size of
//! what the process has already.
//!
//! The library that speaks it is loaded into programs of users, so it brings no reader of JSON along. A GPU is its UUID, in 32 digits.

use std::fmt;

/// Version of the protocol: raised when a line changes its meaning, or gpuosd says what it did not say before.
pub const VERSION: u32 = 3;
/// The first one that has [`FromProgram::Working`].
pub const HAS_WORKING: u32 = 3;
/// The oldest one that gpuosd speaks.
pub const OLDEST: u32 = 1;
/// Why a connection is refused whose first line is not understood.
pub const NOT_UNDERSTOOD: &str =
    "the program and gpuosd do not understand each other: use gpuos of one release";
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
    /// It was connected before, and all of its memory is on NVMe.
    ReturnStowed,
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
    /// It was told to park, and something that was to go to NVMe could not: its memory is where it was, and it works on.
    NotParked,
    /// So much host memory has become free, as it was told: what was parked there is on NVMe, or in the memory of GPUs.
    Demoted {
        /// Bytes.
        bytes: u64,
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
    /// What it knows of its memory.
    Figures(Figures),
    /// It has heard what it was told, and work that was given to its GPUs before is not done.
    Working,
    /// Nothing of it can be moved any more.
    Pinned,
    /// It goes: the connection ends as it should.
    Bye,
}

/// What a process knows of its memory, by its own word: bytes, but for the last.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Figures {
    /// Touched within a second, within a minute, and longer ago, as far as it can know.
    pub heat: [u64; 3],
    /// Moved into GPU memory in all, as it was used.
    pub fetched: u64,
    /// Moved out of it in all, to make room for that.
    pub evicted: u64,
    /// Moved in all because gpuosd said so, but for parking: it has less of a GPU, or memory is short.
    pub pressed: u64,
    /// Milliseconds in all for which it let no work begin, to move something.
    pub held_ms: u64,
}

/// What is short.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Short {
    /// Nothing, any more.
    Calm,
    /// The host memory of the node.
    Node,
    /// The memory of its own job.
    Job,
}

const SHORT: [(&str, Short); 3] = [
    ("calm", Short::Calm),
    ("node", Short::Node),
    ("job", Short::Job),
];

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
        /// A byte, where all of it goes to NVMe.
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
    /// The program gets nothing, and uses no GPU: others have it in turns and count on the memory that it would take. Why, in a sentence.
    Denied {
        /// The sentence.
        why: String,
    },
    /// Everything is to leave the memory of GPUs, and nothing to run until the next turn.
    Park {
        /// Within so many milliseconds.
        deadline_ms: u64,
    },
    /// The same, where host memory is not to take all of it.
    Stow {
        /// Within so many milliseconds.
        deadline_ms: u64,
        /// Bytes that go to NVMe; what else is in the memory of GPUs goes to host memory.
        bytes: u64,
        /// What lies in host memory goes there as well.
        all: bool,
        /// gpuos_mover's socket.
        mover: String,
    },
    /// Of what is parked in host memory, so much is to go to NVMe.
    Demote {
        /// Within so many milliseconds.
        deadline_ms: u64,
        /// Bytes.
        bytes: u64,
        /// gpuos_mover's socket.
        mover: String,
    },
    /// It is the program's turn.
    Turn,
    /// Memory is short, or is not any more.
    Pressure(Short),
    /// Host memory is to be freed, as far as nothing is lost by it.
    Trim {
        /// Within so many milliseconds.
        deadline_ms: u64,
    },
    /// What it may move for which nobody waits.
    Budget {
        /// Between this GPU and the host.
        gpu: Uuid,
        /// Bytes a second.
        rate: u64,
    },
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
pub(crate) fn words(line: &[u8]) -> Result<Vec<&str>, NoMessage> {
    let line = line.strip_suffix(b"\n").unwrap_or(line);
    if line.len() > MAX_LINE || line.iter().any(u8::is_ascii_control) {
        return Err(NoMessage);
    }
    let text = std::str::from_utf8(line).map_err(|_| NoMessage)?;
    Ok(text.split(' ').collect())
}

/// A number in digits alone: no sign, no blank.
pub(crate) fn number(word: &str) -> Result<u64, NoMessage> {
    let digits = !word.is_empty() && word.bytes().all(|byte| byte.is_ascii_digit());
    let number = word.parse().ok().filter(|_| digits);
    number.ok_or(NoMessage)
}

/// A sentence as one line that is not too long: what would not show, or could end it, is left out.
pub(crate) fn sentence(text: &str) -> String {
    let mut all = String::new();
    for letter in text.chars().filter(|letter| !letter.is_control()) {
        if all.len() + letter.len_utf8() > MAX_LINE - 64 {
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
            ["return", "stowed"] => FromProgram::ReturnStowed,
            ["not-parked"] => FromProgram::NotParked,
            ["demoted", bytes] => FromProgram::Demoted {
                bytes: number(bytes)?,
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
            [
                "figures",
                hot,
                warm,
                cold,
                fetched,
                evicted,
                pressed,
                held_ms,
            ] => FromProgram::Figures(Figures {
                heat: [number(hot)?, number(warm)?, number(cold)?],
                fetched: number(fetched)?,
                evicted: number(evicted)?,
                pressed: number(pressed)?,
                held_ms: number(held_ms)?,
            }),
            ["working"] => FromProgram::Working,
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
            FromProgram::ReturnStowed => "return stowed\n".into(),
            FromProgram::NotParked => "not-parked\n".into(),
            FromProgram::Demoted { bytes } => format!("demoted {bytes}\n"),
            FromProgram::Idle => "idle\n".into(),
            FromProgram::Busy => "busy\n".into(),
            FromProgram::Parked {
                took_ms,
                moved,
                left,
            } => format!("parked {took_ms} {moved} {left}\n"),
            FromProgram::Back { took_ms, moved } => format!("back {took_ms} {moved}\n"),
            FromProgram::Moved { down, up } => format!("moved {down} {up}\n"),
            FromProgram::Figures(it) => {
                let [hot, warm, cold] = it.heat;
                format!(
                    "figures {hot} {warm} {cold} {} {} {} {}\n",
                    it.fetched, it.evicted, it.pressed, it.held_ms
                )
            }
            FromProgram::Working => "working\n".into(),
            FromProgram::Pinned => "pinned\n".into(),
            FromProgram::Bye => "bye\n".into(),
        }
    }
}

impl ToProgram {
    /// The version of the protocol that has it first.
    pub fn since(&self) -> u32 {
        match self {
            ToProgram::Pressure(_)
            | ToProgram::Trim { .. }
            | ToProgram::Budget { .. }
            | ToProgram::Stow { .. }
            | ToProgram::Demote { .. }
            | ToProgram::Without { .. } => 2,
            ToProgram::Denied { .. } => 3,
            _ => OLDEST,
        }
    }

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
            ["denied", ..] => ToProgram::Denied {
                why: words[1..].join(" "),
            },
            ["without", gpu, ..] => ToProgram::Without {
                gpu: Uuid::parse(gpu).ok_or(NoMessage)?,
                why: words[2..].join(" "),
            },
            ["park", deadline] => ToProgram::Park {
                deadline_ms: number(deadline)?,
            },
            ["stow", deadline, bytes, what @ ("all" | "part"), _, ..] => ToProgram::Stow {
                deadline_ms: number(deadline)?,
                bytes: number(bytes)?,
                all: what == "all",
                mover: words[4..].join(" "),
            },
            ["demote", deadline, bytes, _, ..] => ToProgram::Demote {
                deadline_ms: number(deadline)?,
                bytes: number(bytes)?,
                mover: words[3..].join(" "),
            },
            ["turn"] => ToProgram::Turn,
            ["pressure", what] => {
                let known = SHORT.iter().find(|(word, _)| *word == what);
                ToProgram::Pressure(known.ok_or(NoMessage)?.1)
            }
            ["trim", deadline] => ToProgram::Trim {
                deadline_ms: number(deadline)?,
            },
            ["budget", gpu, rate] => ToProgram::Budget {
                gpu: Uuid::parse(gpu).ok_or(NoMessage)?,
                rate: number(rate)?,
            },
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
            ToProgram::Denied { why } => format!("denied {}\n", sentence(why)),
            ToProgram::Without { gpu, why } => format!("without {gpu} {}\n", sentence(why)),
            ToProgram::Park { deadline_ms } => format!("park {deadline_ms}\n"),
            ToProgram::Stow {
                deadline_ms,
                bytes,
                all,
                mover,
            } => {
                let what = if *all { "all" } else { "part" };
                let mover = sentence(mover);
                format!("stow {deadline_ms} {bytes} {what} {mover}\n")
            }
            ToProgram::Demote {
                deadline_ms,
                bytes,
                mover,
            } => {
                let mover = sentence(mover);
                format!("demote {deadline_ms} {bytes} {mover}\n")
            }
            ToProgram::Turn => "turn\n".into(),
            ToProgram::Pressure(what) => {
                let known = SHORT.iter().find(|(_, short)| short == what);
                format!("pressure {}\n", known.map_or("calm", |(word, _)| word))
            }
            ToProgram::Trim { deadline_ms } => format!("trim {deadline_ms}\n"),
            ToProgram::Budget { gpu, rate } => format!("budget {gpu} {rate}\n"),
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
