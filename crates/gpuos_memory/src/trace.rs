//! What a program does with its extents, one touch a line:
//!
//! ```text
//! gpuos memory trace 1
//! extent-mib 16
//! # a comment
//! r 12
//! w 12
//! f 12
//! ```
//!
//! `r`: a kernel reads extent 12; `w`: it writes it, or both; `f`: the program frees it. The first touch of an extent, and the
//! first after it was freed, allocates it.

use std::fmt;

/// An extent of a program's memory, by a number of its own. A trace has numbers below [`MOST_EXTENTS`].
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct Extent(pub u32);

/// Extents of a trace: at 64 MiB each 256 TiB.
pub const MOST_EXTENTS: u32 = 1 << 22;
/// Lines of a trace.
pub const MOST_TOUCHES: usize = 1 << 26;
/// The first line of a trace.
pub const HEAD: &str = "gpuos memory trace 1";

/// What a program does with an extent.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Touch {
    /// Reads it.
    Read(Extent),
    /// Writes it, or reads and writes it.
    Write(Extent),
    /// Frees it: what is in it is of no use any more.
    Free(Extent),
}

impl Touch {
    /// Which extent.
    pub fn extent(self) -> Extent {
        let (Touch::Read(extent) | Touch::Write(extent) | Touch::Free(extent)) = self;
        extent
    }
}

/// A line of a trace.
impl fmt::Display for Touch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Touch::Read(extent) => write!(f, "r {}", extent.0),
            Touch::Write(extent) => write!(f, "w {}", extent.0),
            Touch::Free(extent) => write!(f, "f {}", extent.0),
        }
    }
}

/// What a program did, in order.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Trace {
    /// Size of each extent, in MiB: 2 to 64.
    pub extent_mib: u32,
    /// All that it did.
    pub touches: Vec<Touch>,
}

/// Why a text is no trace.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct TraceError {
    /// The line, from 1.
    pub line: usize,
    /// What is wrong, and what is accepted.
    pub why: String,
}

impl fmt::Display for TraceError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "line {}: {}", self.line, self.why)
    }
}

impl std::error::Error for TraceError {}

impl Trace {
    /// Reads a trace.
    ///
    /// # Errors
    /// The first line that is none of a trace, with what is accepted there.
    pub fn read(text: &str) -> Result<Trace, TraceError> {
        let mut lines = (1..)
            .zip(text.lines())
            .map(|(number, line)| (number, line.trim()))
            .filter(|(_, line)| !line.is_empty() && !line.starts_with('#'));
        let mut head = |what: &str| {
            lines.next().ok_or_else(|| TraceError {
                line: text.lines().count() + 1,
                why: format!("the trace ends where {what} is expected"),
            })
        };
        let (line, first) = head(HEAD)?;
        if first != HEAD {
            let why = format!("a trace begins with {HEAD:?}");
            return Err(TraceError { line, why });
        }
        let (line, size) = head("extent-mib N")?;
        let mib = size.strip_prefix("extent-mib ").map(str::trim);
        let mib = mib.and_then(|mib| mib.parse().ok());
        let Some(extent_mib) = mib.filter(|mib| (2..=64).contains(mib)) else {
            let why = "the second line is the size of extents in MiB, from 2 to 64: extent-mib 16";
            return Err(TraceError {
                line,
                why: why.into(),
            });
        };
        let mut touches = Vec::new();
        for (line, text) in lines {
            let touch = touch(text).map_err(|why| TraceError { line, why })?;
            if touches.len() == MOST_TOUCHES {
                let why = format!("a trace has at most {MOST_TOUCHES} touches");
                return Err(TraceError { line, why });
            }
            touches.push(touch);
        }
        Ok(Trace {
            extent_mib,
            touches,
        })
    }

    /// How many extents there are at most at the same time.
    pub fn footprint(&self) -> usize {
        let mut there = std::collections::HashSet::new();
        let mut most = 0;
        for touch in &self.touches {
            match touch {
                Touch::Free(extent) => there.remove(extent),
                Touch::Read(extent) | Touch::Write(extent) => there.insert(*extent),
            };
            most = most.max(there.len());
        }
        most
    }
}

fn touch(text: &str) -> Result<Touch, String> {
    let wrong = || {
        format!(
            "{:?} is no touch; accepted are r N, w N and f N with an extent below {MOST_EXTENTS}",
            text.chars().take(40).collect::<String>()
        )
    };
    let (what, number) = text.split_once(' ').ok_or_else(wrong)?;
    let number = number.trim().parse().ok();
    let extent = number.filter(|number| *number < MOST_EXTENTS);
    let extent = Extent(extent.ok_or_else(wrong)?);
    match what {
        "r" => Ok(Touch::Read(extent)),
        "w" => Ok(Touch::Write(extent)),
        "f" => Ok(Touch::Free(extent)),
        _ => Err(wrong()),
    }
}

/// The text that [`Trace::read`] reads.
impl fmt::Display for Trace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{HEAD}\nextent-mib {}", self.extent_mib)?;
        self.touches
            .iter()
            .try_for_each(|touch| writeln!(f, "{touch}"))
    }
}
