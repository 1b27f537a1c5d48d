//! Where the value of an option came from, so that whoever reads a message finds the value again.
//!
//! It changes words, and which options are silent in a job without GPUs. The controller learns it from a variable of the
//! job, which its user can write himself: what is not understood there is passed over, and what is forbidden stays so.
use std::fmt;

use gpuos_core::limits::Share;

use super::{JobOptions, OPTIONS, OptionHelp, parse_memory, parse_share};

/// Entry of a job's `spank_job_env` with [`Sources::text`].
pub const SOURCES: &str = "GPUOS_SOURCES";

/// The longest text that is read; all options of both kinds are shorter.
const MAX_TEXT: usize = 512;

/// Where a value came from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub enum Source {
    /// The command line, or not known.
    #[default]
    Flag,
    /// A line of the batch script.
    Script,
    /// The default in the environment.
    Environment,
}

/// The row of an option with or without the leading dashes.
fn row(option: &str) -> Option<usize> {
    let name = option.trim_start_matches('-');
    OPTIONS.iter().position(|row| row.name == name)
}

/// The option's name without what all of them begin with.
fn short(row: &OptionHelp) -> &'static str {
    row.name.strip_prefix("gpuos-").unwrap_or(row.name)
}

impl Source {
    /// The value as it was given: `--gpuos-watch=5`, `#SBATCH --gpuos-watch=5` or `GPUOS_WATCH=5 (environment)`.
    pub fn named(self, option: &str, value: &str) -> String {
        match (self, row(option)) {
            (Source::Environment, Some(row)) => {
                format!("{}={value} (environment)", OPTIONS[row].environment)
            }
            (Source::Script, Some(_)) => format!("#SBATCH {option}={value}"),
            _ => format!("{option}={value}"),
        }
    }
}

/// Where the values of all options came from.
#[derive(Clone, Copy, PartialEq, Eq, Default, Debug)]
pub struct Sources([Source; OPTIONS.len()]);

impl Sources {
    /// Notes where the value of an option came from.
    pub fn set(&mut self, option: &str, source: Source) {
        if let Some(row) = row(option) {
            self.0[row] = source;
        }
    }

    /// Where the value of an option came from.
    pub fn of(&self, option: &str) -> Source {
        row(option).map_or(Source::Flag, |row| self.0[row])
    }

    /// [`Source::named`] of an option.
    pub fn named(&self, option: &str, value: &str) -> String {
        self.of(option).named(option, value)
    }

    /// `environment=watch,power script=mig`; empty where all are of the command line.
    pub fn text(&self) -> String {
        let kinds = [
            ("environment", Source::Environment),
            ("script", Source::Script),
        ];
        let part = |(word, kind)| {
            let of = OPTIONS.iter().zip(&self.0);
            let names: Vec<&str> = of
                .filter(|(_, source)| **source == kind)
                .map(|(row, _)| short(row))
                .collect();
            (!names.is_empty()).then(|| format!("{word}={}", names.join(",")))
        };
        let parts: Vec<String> = kinds.into_iter().filter_map(part).collect();
        parts.join(" ")
    }

    /// Reads [`Sources::text`]. Anybody can write one: what is none says nothing.
    pub fn parse(text: &str) -> Sources {
        let mut sources = Sources::default();
        if text.len() > MAX_TEXT {
            return sources;
        }
        for (word, names) in text.split(' ').filter_map(|part| part.split_once('=')) {
            let source = match word {
                "environment" => Source::Environment,
                "script" => Source::Script,
                _ => continue,
            };
            for name in names.split(',') {
                if let Some(row) = OPTIONS.iter().position(|row| short(row) == name) {
                    sources.0[row] = source;
                }
            }
        }
        sources
    }

    /// Reads a job's `spank_job_env`; of several entries the first counts.
    pub fn from_spank_env<'a>(mut entries: impl Iterator<Item = &'a str>) -> Sources {
        let value = entries.find_map(|entry| {
            entry
                .strip_prefix(SOURCES)
                .and_then(|e| e.strip_prefix('='))
        });
        value.map_or_else(Sources::default, Sources::parse)
    }
}

/// Options of `JobOptions` that a step of a job has for itself.
const OF_STEPS: [&str; 6] = ["power", "clocks", "watch", "mps", "share", "mem"];

/// What a job says of its GPUs while it runs, in one line that its steps inherit: `power=300W watch=off`. `off` stands
/// there where the default of the environment does not count either.
#[derive(Clone, PartialEq, Eq, Default, Debug)]
pub struct Inherited {
    texts: [Option<String>; OF_STEPS.len()],
    sources: Sources,
}

impl Inherited {
    /// Reads such a line; what is no such option or no value of it is left out, for anybody can write one.
    pub fn parse(text: &str) -> Inherited {
        let mut all = Inherited::default();
        for (name, value) in text.split(' ').filter_map(|part| part.split_once('=')) {
            all.record(&format!("gpuos-{name}"), value, Source::Flag);
        }
        all.sources = Sources::parse(text);
        all
    }

    /// Notes a value, or `off`. What is no value changes nothing.
    pub fn record(&mut self, option: &str, value: &str, source: Source) {
        let place = OF_STEPS
            .iter()
            .position(|name| Some(*name) == option.strip_prefix("gpuos-"));
        let good = || JobOptions::default().set(option, value).is_ok();
        if let Some(place) = place.filter(|_| good()) {
            self.texts[place] = Some(match is_off(value) {
                true => "off".into(),
                false => value.into(),
            });
            self.sources.set(option, source);
        }
    }

    /// Notes where the value of an option came from that steps have by another way.
    pub fn came_from(&mut self, option: &str, source: Source) {
        self.sources.set(option, source);
    }

    /// [`Source::named`] of an option.
    pub fn named(&self, option: &str, value: &str) -> String {
        self.sources.named(option, value)
    }

    /// Whether the job has a value for an option, or has undone it.
    pub fn has(&self, option: &str) -> bool {
        self.pairs()
            .any(|(name, _)| Some(name) == option.strip_prefix("gpuos-"))
    }

    /// Whether it has this very value for an option.
    pub fn has_value(&self, option: &str, value: &str) -> bool {
        self.pairs()
            .any(|said| Some(said) == option.strip_prefix("gpuos-").zip(Some(value)))
    }

    /// Whether it has an option of which gpuosd has to know although the job has no GPUs, by this [table](OPTIONS).
    pub fn needs_report(&self, table: &[OptionHelp]) -> bool {
        let needs = |name: &str| {
            let mut needing = table.iter().filter(|row| row.without_gpus);
            needing.any(|row| short(row) == name)
        };
        self.pairs()
            .any(|(name, value)| !is_off(value) && needs(name))
    }

    /// Whether memory for each GPU, as `--gpuos-mem` has it, is what is said here of it, or less.
    pub fn bounds_memory(&self, value: &str) -> bool {
        let (most, asked) = (self.options().memory, parse_memory(value).ok());
        most.zip(asked)
            .is_some_and(|(most, asked)| asked.is_within(&most))
    }

    /// Whether a step may share its GPU so, as `--gpuos-share` has it: beside other jobs in turns with no more of its memory than is said here,
    /// and in turns with its memory only if that is said here at all. Where it is parked is said of jobs: a step cannot have it on NVMe where its job has not.
    pub fn bounds_share(&self, value: &str) -> bool {
        let (most, asked) = (self.options().share, parse_share(value).ok());
        let on_nvme = |share: Option<Share>| share.is_some_and(|share| share.nvme_gib() > 0);
        if on_nvme(asked) && !on_nvme(most) {
            return false;
        }
        let in_turns = |share: Option<Share>| share.and_then(Share::in_turns_mib);
        match (in_turns(most), in_turns(asked)) {
            (Some(most), Some(asked)) => asked <= most,
            (most, asked) => most == asked,
        }
    }

    /// Whether an option is undone.
    pub fn undoes(&self) -> bool {
        self.pairs().any(|(_, value)| value == "off")
    }

    /// The options, without those that are undone.
    pub fn options(&self) -> JobOptions {
        let mut options = JobOptions::default();
        for (name, value) in self.pairs() {
            // Checked when it was noted.
            let _ = options.set(&format!("gpuos-{name}"), value);
        }
        options
    }

    /// A sentence with each of these options named by where its value came from.
    pub fn reworded(&self, sentence: &str) -> String {
        let mut sentence = sentence.to_owned();
        for (name, value) in self.pairs() {
            let option = format!("--gpuos-{name}");
            let named = self.sources.named(&option, value);
            let plain = format!("{option}={value}");
            if named != plain {
                let left_out = format!("{option} is left out");
                sentence = sentence
                    .replace(&left_out, &format!("{plain} is left out"))
                    .replace(&plain, &named);
            }
        }
        sentence
    }

    fn pairs(&self) -> impl Iterator<Item = (&'static str, &str)> {
        let said = OF_STEPS.into_iter().zip(&self.texts);
        said.filter_map(|(name, value)| Some((name, value.as_deref()?)))
    }
}

impl fmt::Display for Inherited {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let said = self.pairs().map(|(name, value)| format!("{name}={value}"));
        let sources = Some(self.sources.text()).filter(|text| !text.is_empty());
        let all: Vec<String> = said.chain(sources).collect();
        f.write_str(&all.join(" "))
    }
}

/// Whether a value undoes its option: nothing is asked, also not by the default of the environment.
pub fn is_off(value: &str) -> bool {
    value.eq_ignore_ascii_case("off")
}
