//! The marked part of a Slurm node's `Extra`: `[gpuos:1 out=2,5 degraded=3 mig-out=6 short=host ckpt=12:3]`. All other text is the
//! administrator's and is kept as it is. So are words in the part that this release does not know: another release of
//! gpuos wrote them, and the known ones beside them mean what they mean. A word has neither spaces nor brackets.
use std::collections::BTreeMap;
use std::fmt;

use gpuos_model::gpu_index::{GresGpu, NvmlIndex};
use gpuos_model::gpuset::MAX_GPUS;
use gpuos_model::node_gpu::NodeGpu;
use serde::{Deserialize, Serialize};

use super::held::{self, HeldJob};

const OPEN: &str = "[gpuos:";
const CLOSE: char = ']';
/// Version of the form.
pub(super) const VERSION: &str = "1";
/// The words that are known, in their order. Each has a list of GPUs, but for the last two, which have no say in what is out.
const WORDS: [&str; 5] = ["out", "degraded", "mig-out", "short", held::KEY];
/// Where in it the word stands that says what the node is short of, ...
const SHORT: usize = 3;
/// ... and the one that names jobs.
const HELD: usize = 4;
/// What a node can be short of: memory of the host.
const HOST: &str = "host";

/// GPUs that are not as they should be, ascending, whether the node is short of host memory, and whose checkpoints it holds.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize, Deserialize)]
pub struct ExtraPart {
    /// GPUs that get no jobs, by GRES index.
    pub out: Vec<GresGpu>,
    /// GPUs that get jobs last, by GRES index.
    pub degraded: Vec<GresGpu>,
    /// GPUs of the node's pool whose slices are not given, by NVML's index.
    #[serde(default)]
    pub pool_out: Vec<NvmlIndex>,
    /// The node is short of host memory, as its gpuosd measures it: jobs whose programs need some of it had better go elsewhere.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub short: bool,
    /// Jobs of which checkpoints lie on the node, by Slurm's number, with their GiB there, rounded up: a hint, see [`held`].
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub held: BTreeMap<u32, u32>,
    /// Checkpoints of more jobs than these lie there.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub held_more: bool,
}

/// What of a part cannot be read, and so counts as the worse of what it may have said.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum ExtraError {
    /// Another version of gpuos wrote it.
    Version(String),
    /// It has no end.
    Open,
    /// A word that says which GPUs are out has something else than a list of them.
    Out(String),
    /// So has the one of the degraded ones.
    Degraded(String),
}

impl fmt::Display for ExtraError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = "all GPUs of the node count as out of service until gpuosd writes it again or an administrator corrects it";
        match self {
            ExtraError::Version(version) => write!(
                f,
                "Extra has gpuos's part in version {version}, and this gpuos reads version {VERSION}; {all}"
            ),
            ExtraError::Open => {
                write!(f, "gpuos's part of Extra has no closing bracket; {all}")
            }
            ExtraError::Out(word) => {
                let whose = match word.starts_with(WORDS[2]) {
                    true => "GPUs of the node's pool",
                    false => "GPUs of the node in GRES gpu",
                };
                write!(
                    f,
                    "gpuos's part of Extra holds {word:?}, which is no list of GPU indices below {MAX_GPUS} as in \
                     out=2,5; all {whose} count as out of service until gpuosd writes it again or an administrator corrects it"
                )
            }
            ExtraError::Degraded(word) => write!(
                f,
                "gpuos's part of Extra holds {word:?}, which is no list of GPU indices below {MAX_GPUS} as in \
                 degraded=3; only those of it that can be read count as degraded until gpuosd writes it again"
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

    /// Whether another part says the same of all GPUs.
    pub fn has_same_gpus(&self, other: &ExtraPart) -> bool {
        (&self.out, &self.degraded, &self.pool_out)
            == (&other.out, &other.degraded, &other.pool_out)
    }

    /// Jobs of which checkpoints lie on the node: the largest of them, as many as the word may name.
    pub fn largest_held(jobs: &BTreeMap<u32, u32>) -> BTreeMap<u32, u32> {
        let word = word_of(jobs, false).unwrap_or_default();
        let (_, value) = word.split_once('=').unwrap_or_default();
        map_of(held::read(value))
    }

    /// Whether a GPU gets no jobs.
    pub fn has_any_out(&self) -> bool {
        !self.out.is_empty() || !self.pool_out.is_empty()
    }

    /// All GPUs that get no jobs.
    pub fn all_out(&self) -> Vec<NodeGpu> {
        let pool = self.pool_out.iter().copied().map(NodeGpu::Pool);
        let gres = self.out.iter().copied().map(NodeGpu::Gres);
        gres.chain(pool).collect()
    }

    /// Whether this GPU gets no jobs.
    pub fn has_out(&self, gpu: NodeGpu) -> bool {
        match gpu {
            NodeGpu::Pool(gpu) => self.pool_out.contains(&gpu),
            NodeGpu::Gres(gpu) => self.out.contains(&gpu),
        }
    }

    /// Reads the part out of a whole `Extra`; the empty part where there is none, and of several all that they say.
    /// Words that are not known say nothing here. What is damaged counts as the worst that it may have said: a GPU that is
    /// out must get no job because a character was lost, while jobs that wait until gpuosd has written the part anew
    /// lose nothing.
    pub fn read(extra: &str) -> (ExtraPart, Option<ExtraError>) {
        let (mut part, mut wrong) = (ExtraPart::default(), None);
        let mut rest = extra;
        while let Some((_, body, after)) = next_part(rest) {
            rest = after;
            if let Err(why) = part.add(body)
                && !matches!(
                    wrong,
                    Some(ExtraError::Version(_) | ExtraError::Open | ExtraError::Out(_))
                )
            {
                wrong = Some(why);
            }
        }
        sort_unique(&mut part.out);
        sort_unique(&mut part.degraded);
        sort_unique(&mut part.pool_out);
        let out = &part.out;
        part.degraded.retain(|gpu| !out.contains(gpu));
        part.held = map_of(held::held(extra));
        part.held_more = held::is_cut(extra);
        (part, wrong)
    }

    /// The words of the part that this release does not know, shortened for a line of a log; `None`: it knows all.
    pub fn unknown(extra: &str) -> Option<String> {
        let mut words = Vec::new();
        without(extra, &mut words);
        words.retain(|word| list_of(word).is_none());
        (!words.is_empty()).then(|| shorten(&words.join(" ")))
    }

    /// Whether all GPUs of the pool are out, however many it has.
    pub fn has_whole_pool_out(&self) -> bool {
        self.pool_out.len() == MAX_GPUS
    }

    /// Adds what one part says; what is known before an error is added, too.
    fn add(&mut self, body: Option<&str>) -> Result<(), ExtraError> {
        let Some(body) = body else {
            (self.out, self.pool_out) = (every(GresGpu::new), every(NvmlIndex::new));
            return Err(ExtraError::Open);
        };
        let mut words = body.split_ascii_whitespace();
        let version = words.next().unwrap_or_default();
        if version != VERSION {
            (self.out, self.pool_out) = (every(GresGpu::new), every(NvmlIndex::new));
            return Err(ExtraError::Version(shorten(version)));
        }
        let mut wrong = Ok(());
        for word in words {
            let Some(nth) = list_of(word) else {
                continue;
            };
            let (_, list) = word.split_once('=').unwrap_or_default();
            let damaged = match WORDS[nth] {
                held::KEY => continue,
                // Another release may know more that a node can be short of.
                "short" => {
                    self.short |= list == HOST;
                    continue;
                }
                "degraded" => {
                    if take(&mut self.degraded, list, GresGpu::new) && wrong.is_ok() {
                        wrong = Err(ExtraError::Degraded(shorten(word)));
                    }
                    continue;
                }
                "mig-out" => take_out(&mut self.pool_out, list, NvmlIndex::new),
                _ => take_out(&mut self.out, list, GresGpu::new),
            };
            if damaged && !matches!(wrong, Err(ExtraError::Out(_))) {
                wrong = Err(ExtraError::Out(shorten(word)));
            }
        }
        wrong
    }

    /// What there is to say, in the order of [`WORDS`]; none for an empty list.
    fn words(&self) -> [Option<String>; WORDS.len()] {
        let word =
            |nth: usize, list: String| (!list.is_empty()).then(|| format!("{}={list}", WORDS[nth]));
        [
            word(0, listed(&self.out)),
            word(1, listed(&self.degraded)),
            word(2, listed(&self.pool_out)),
            self.short.then(|| format!("{}={HOST}", WORDS[SHORT])),
            word_of(&self.held, self.held_more),
        ]
    }

    /// The `Extra` with this part in it. Other text keeps its place, and words of the part that are not known keep
    /// theirs in it; what is damaged goes, and several parts become one.
    pub fn write_into(&self, extra: &str) -> String {
        let mut old = Vec::new();
        let mut text = without(extra, &mut old);
        // What stood around a part can make another one.
        while text.contains(OPEN) {
            text = without(&text, &mut old);
        }
        let mut words = self.words();
        // Known words that were not there come first: what cuts a text cuts its end.
        let is_new = |nth: &usize| !old.iter().any(|word| list_of(word) == Some(*nth));
        let new = (0..HELD).filter(is_new);
        let mut all: Vec<String> = new.filter_map(|nth| words[nth].take()).collect();
        all.extend(old.into_iter().filter_map(|word| match list_of(&word) {
            Some(nth) => words[nth].take(),
            None => Some(word),
        }));
        // Of all that may be cut off this is what nobody's job depends on.
        all.extend(words[HELD].take());
        if all.is_empty() {
            return text;
        }
        if !text.is_empty() {
            text.push(' ');
        }
        text + &bracketed(&all)
    }
}

/// Which of [`WORDS`] a word is; `None`: it is not known.
fn list_of(word: &str) -> Option<usize> {
    let key = word.split_once('=').map_or(word, |(key, _)| key);
    WORDS.iter().position(|known| *known == key)
}

fn word_of(jobs: &BTreeMap<u32, u32>, more: bool) -> Option<String> {
    let all = jobs.iter().map(|(&job, &gib)| HeldJob { job, gib });
    held::word(&all.collect::<Vec<_>>(), more)
}

fn map_of(jobs: Vec<HeldJob>) -> BTreeMap<u32, u32> {
    jobs.into_iter().map(|held| (held.job, held.gib)).collect()
}

/// Every GPU that a node may have.
fn every<T>(gpu: fn(usize) -> Option<T>) -> Vec<T> {
    (0..MAX_GPUS).filter_map(gpu).collect()
}

/// Adds the GPUs of a list. Gives whether it holds something else, too.
fn take<T>(known: &mut Vec<T>, list: &str, gpu: fn(usize) -> Option<T>) -> bool {
    let mut damaged = false;
    for index in list.split(',') {
        let plain = index.bytes().all(|b| b.is_ascii_digit());
        let index = index.parse::<u8>().ok().filter(|_| plain);
        match index.and_then(|index| gpu(index.into())) {
            Some(gpu) => known.push(gpu),
            None => damaged = true,
        }
    }
    damaged
}

/// Adds the GPUs of a list of those that are out: all that there may be if it holds something else, too.
fn take_out<T>(known: &mut Vec<T>, list: &str, gpu: fn(usize) -> Option<T>) -> bool {
    let damaged = take(known, list, gpu);
    if damaged {
        *known = every(gpu);
    }
    damaged
}

fn sort_unique<T: Ord>(list: &mut Vec<T>) {
    list.sort_unstable();
    list.dedup();
}

fn listed<T: ToString>(list: &[T]) -> String {
    let all: Vec<String> = list.iter().map(T::to_string).collect();
    all.join(",")
}

fn bracketed(words: &[String]) -> String {
    format!("{OPEN}{VERSION} {}{CLOSE}", words.join(" "))
}

/// What is before the first part, what is in it, and what follows; in it is nothing to be read where it has no end before
/// the next one begins.
pub(super) fn next_part(text: &str) -> Option<(&str, Option<&str>, &str)> {
    let (before, rest) = text.split_once(OPEN)?;
    let ended = rest
        .split_once(CLOSE)
        .filter(|(body, _)| !body.contains(OPEN));
    Some(match ended {
        Some((body, after)) => (before, Some(body), after),
        None => (before, None, rest),
    })
}

/// The text without gpuos's parts, and without the space that was set before each. `words` gets those of the parts.
fn without(extra: &str, words: &mut Vec<String>) -> String {
    let mut text = String::with_capacity(extra.len() + 40);
    let mut rest = extra;
    while let Some((before, body, after)) = next_part(rest) {
        text.push_str(before);
        if let Some(body) = body {
            let mut all = body.split_ascii_whitespace();
            // Of another version nobody knows what a word means.
            if all.next() == Some(VERSION) {
                words.extend(all.map(str::to_string));
            }
        }
        // Without its end nobody can tell how far a part went: only the words that are ours go.
        rest = match body {
            Some(_) => after,
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
    let word = |rest: &'_ str| {
        let mut keys = WORDS.iter();
        keys.find_map(|key| {
            let value = rest.strip_prefix(key)?.strip_prefix('=')?;
            Some(match *key {
                held::KEY => {
                    let left = value.trim_start_matches(|c| ours(c) || c == ':');
                    match held::MORE.starts_with(left) {
                        true => 0,
                        false => left.strip_prefix(held::MORE).unwrap_or(left).len(),
                    }
                }
                "short" if HOST.starts_with(value) => 0,
                "short" => value.strip_prefix(HOST).unwrap_or(value).len(),
                _ => value.len(),
            })
        })
    };
    while let Some(left) = word(rest) {
        rest = rest[rest.len() - left..].trim_start_matches(ours);
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
        let words: Vec<String> = self.words().into_iter().flatten().collect();
        match words.is_empty() {
            true => Ok(()),
            false => f.write_str(&bracketed(&words)),
        }
    }
}
