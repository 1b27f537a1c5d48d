//! The marked part of a Slurm node's `Extra`: `[gpuos:1 out=2,5 degraded=3 mig-out=6]`. All other text is the
//! administrator's and is kept as it is.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::number;
use crate::gpuset::MAX_GPUS;

const OPEN: &str = "[gpuos:";
const CLOSE: char = ']';
/// Version of the form.
const VERSION: &str = "1";

/// GPUs that are not as they should be, ascending. Empty when all is well.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExtraPart {
    /// GPUs that get no jobs, by GRES index.
    pub out: Vec<u8>,
    /// GPUs that get jobs last, by GRES index.
    pub degraded: Vec<u8>,
    /// GPUs of the node's pool whose slices are not given, by NVML's index.
    #[serde(default)]
    pub pool_out: Vec<u8>,
}

/// Why a part cannot be read. It is to be taken as "nothing is out", and said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExtraError {
    /// Another version of gpuos wrote it.
    Version(String),
    /// It has no end.
    Open,
    /// A word in it means nothing.
    Word(String),
    /// There are two.
    Twice,
}

impl fmt::Display for ExtraError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            ExtraError::Version(version) => write!(
                f,
                "Extra has gpuos's part in version {version}, and this gpuos reads version {VERSION}; all \
                 GPUs of the node count as sound until gpuosd writes it again"
            ),
            ExtraError::Open => write!(
                f,
                "gpuos's part of Extra has no closing bracket; all GPUs of the node count as sound until \
                 gpuosd writes it again"
            ),
            ExtraError::Word(word) => write!(
                f,
                "gpuos's part of Extra holds {word:?}, and only out=, degraded= and mig-out= with GPU indices \
                 below {MAX_GPUS} are accepted; all GPUs of the node count as sound until gpuosd writes it again"
            ),
            ExtraError::Twice => write!(
                f,
                "Extra has two parts of gpuos; all GPUs of the node count as sound until gpuosd writes it again"
            ),
        }
    }
}

impl std::error::Error for ExtraError {}

impl ExtraPart {
    /// Whether all GPUs are as they should be.
    pub fn is_empty(&self) -> bool {
        self.out.is_empty() && self.degraded.is_empty() && self.pool_out.is_empty()
    }

    /// Whether a GPU gets no jobs.
    pub fn has_any_out(&self) -> bool {
        !self.out.is_empty() || !self.pool_out.is_empty()
    }

    /// All GPUs that get no jobs, by [`super::number`].
    pub fn all_out(&self) -> Vec<u8> {
        let pool = self.pool_out.iter();
        let pool = pool.filter_map(|nvml| number::of_pool(*nvml));
        self.out.iter().copied().chain(pool).collect()
    }

    /// Whether this GPU gets no jobs, by [`super::number`].
    pub fn has_out(&self, gpu: u8) -> bool {
        match number::pool_index(gpu) {
            Some(nvml) => self.pool_out.contains(&nvml),
            None => self.out.contains(&gpu),
        }
    }

    /// Reads the part out of a whole `Extra`; the empty part where there is none.
    ///
    /// # Errors
    /// The part is damaged.
    pub fn read(extra: &str) -> Result<ExtraPart, ExtraError> {
        let Some((_, rest)) = extra.split_once(OPEN) else {
            return Ok(ExtraPart::default());
        };
        let (body, after) = rest.split_once(CLOSE).ok_or(ExtraError::Open)?;
        if after.contains(OPEN) {
            return Err(ExtraError::Twice);
        }
        let mut words = body.split(' ').filter(|word| !word.is_empty());
        let version = words.next().unwrap_or_default();
        if version != VERSION {
            return Err(ExtraError::Version(shorten(version)));
        }
        let mut part = ExtraPart::default();
        for word in words {
            let wrong = || ExtraError::Word(shorten(word));
            let (key, list) = word.split_once('=').ok_or_else(wrong)?;
            let place = match key {
                "out" => &mut part.out,
                "degraded" => &mut part.degraded,
                "mig-out" => &mut part.pool_out,
                _ => return Err(wrong()),
            };
            if !place.is_empty() {
                return Err(wrong());
            }
            for index in list.split(',') {
                let plain = index.bytes().all(|b| b.is_ascii_digit());
                let index = index.parse::<u8>().ok().filter(|_| plain);
                let index = index.filter(|&index| usize::from(index) < MAX_GPUS);
                place.push(index.ok_or_else(wrong)?);
            }
            place.sort_unstable();
            place.dedup();
        }
        let out = &part.out;
        part.degraded.retain(|gpu| !out.contains(gpu));
        Ok(part)
    }

    /// The `Extra` with this part in it: other text keeps its place; a damaged part goes.
    pub fn write_into(&self, extra: &str) -> String {
        let mut text = without(extra);
        // What stood around a part can make another one.
        while text.contains(OPEN) {
            text = without(&text);
        }
        if self.is_empty() {
            return text;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text.push_str(&self.to_string());
        text
    }
}

/// The text without gpuos's parts, and without the space that was set before each.
fn without(extra: &str) -> String {
    let mut text = String::with_capacity(extra.len() + 40);
    let mut rest = extra;
    while let Some((before, after)) = rest.split_once(OPEN) {
        text.push_str(before);
        // Without its end nobody can tell how far a part went: only the words that are ours go.
        rest = match after.split_once(CLOSE) {
            Some((_, after)) => after,
            None => ours_skipped(after),
        };
        if text.ends_with(' ') {
            text.pop();
        }
    }
    text.push_str(rest);
    text
}

/// What follows the words of a part that has no end.
fn ours_skipped(text: &str) -> &str {
    let ours = |c: char| c.is_ascii_digit() || matches!(c, ' ' | ',' | '=');
    let mut rest = text.trim_start_matches(ours);
    while let Some(after) = ["out=", "degraded=", "mig-out="]
        .iter()
        .find_map(|word| rest.strip_prefix(word))
    {
        rest = after.trim_start_matches(ours);
    }
    rest
}

/// For an error, which is one line.
fn shorten(text: &str) -> String {
    let plain = text.chars().map(|c| if c.is_control() { ' ' } else { c });
    plain.take(40).collect()
}

/// The part as it stands in `Extra`; nothing when all is well.
impl fmt::Display for ExtraPart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return Ok(());
        }
        write!(f, "{OPEN}{VERSION}")?;
        let lists = [
            ("out", &self.out),
            ("degraded", &self.degraded),
            ("mig-out", &self.pool_out),
        ];
        for (key, list) in lists {
            let list: Vec<String> = list.iter().map(u8::to_string).collect();
            if !list.is_empty() {
                write!(f, " {key}={}", list.join(","))?;
            }
        }
        write!(f, "{CLOSE}")
    }
}
