//! plugstack.conf: whether Slurm's commands and slurmd load spank_gpuos.so.

use std::path::{Path, PathBuf};

use gpuos_host::Machine;

use super::Context;
use super::about::{self, About};
use super::files::distance;
use super::findings::Findings;
use super::plugins;

const NAME: About = about::PLUGSTACK;
const FILE: &str = "spank_gpuos.so";
/// What may stand behind it.
const ARGUMENTS: [&str; 4] = ["socket", "preload", "mover", "jobs"];

/// How deep `include` is followed.
const MAX_DEPTH: usize = 8;

/// A line that loads a plugin.
struct Line {
    /// `required` or `optional`, or what stands in its place.
    word: String,
    path: String,
    /// What stands behind it.
    arguments: Vec<String>,
    place: String,
}

/// plugstack.conf and what it includes.
#[derive(Default)]
struct Stack {
    lines: Vec<Line>,
    /// `include` lines that no file fits, with their places.
    nothing: Vec<(String, String)>,
    /// Files that cannot be read, with the reason.
    unreadable: Vec<String>,
}

fn path(look: &Context) -> PathBuf {
    match look.settings.get("PlugStackConfig") {
        Some(path) => path.into(),
        None => look.settings.directory().join("plugstack.conf"),
    }
}

fn read(look: &Context) -> Stack {
    let mut stack = Stack::default();
    search(look.machine, &path(look), 0, &mut stack);
    stack
}

fn search(machine: &dyn Machine, path: &Path, depth: usize, stack: &mut Stack) {
    let bytes = match machine.read(path) {
        Ok(bytes) => bytes,
        Err(error) => {
            stack
                .unreadable
                .push(format!("{}: {error}", path.display()));
            return;
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    for (nth, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("");
        let mut words = line.split_whitespace();
        let (Some(word), Some(target)) = (words.next(), words.next()) else {
            continue;
        };
        let place = format!("{}:{}", path.display(), nth + 1);
        if word.eq_ignore_ascii_case("include") && depth < MAX_DEPTH {
            let target = path.parent().unwrap_or(Path::new("/")).join(target);
            let files = machine.glob(&target);
            if files.is_empty() {
                stack.nothing.push((target.display().to_string(), place));
            }
            for file in files {
                search(machine, &file, depth + 1, stack);
            }
        } else {
            stack.lines.push(Line {
                word: word.into(),
                path: target.into(),
                arguments: words.map(str::to_string).collect(),
                place,
            });
        }
    }
}

fn is_ours(line: &&Line) -> bool {
    Path::new(&line.path)
        .file_name()
        .is_some_and(|name| name == FILE)
}

/// The path of spank_gpuos.so as plugstack.conf writes it.
pub fn spank_file(look: &Context) -> Option<PathBuf> {
    let stack = read(look);
    stack
        .lines
        .iter()
        .find(is_ours)
        .map(|line| line.path.clone().into())
}

/// What stands behind spank_gpuos.so, `NAME=VALUE`.
pub fn argument(look: &Context, name: &str) -> Option<String> {
    let stack = read(look);
    let arguments = stack.lines.iter().filter(is_ours);
    let mut arguments = arguments.flat_map(|line| line.arguments.clone());
    arguments.find_map(|argument| {
        let (key, value) = argument.split_once('=')?;
        (key == name).then(|| value.to_string())
    })
}

/// Arguments of spank_gpuos.so that mean nothing to it, or that name what is no path.
fn arguments(line: &Line, findings: &mut Findings) {
    for argument in &line.arguments {
        let (key, value) = argument.split_once('=').unwrap_or((argument, ""));
        let wrong = match () {
            () if !ARGUMENTS.contains(&key) => format!("{FILE} knows no argument {argument}"),
            () if !value.starts_with('/') => {
                format!("{argument}: {key}= is a path from the root")
            }
            () => continue,
        };
        let known: Vec<String> = ARGUMENTS
            .iter()
            .map(|name| format!("{name}=PATH"))
            .collect();
        findings
            .warn(
                NAME,
                wrong,
                format!("write one of {}, or take it out", known.join(", ")),
            )
            .at(&line.place)
            .why("the plugin goes on with what is usual in its place");
    }
}

/// Whether a line's path leads to a file.
fn there(look: &Context, path: &str) -> bool {
    let path = Path::new(path);
    if path.is_absolute() {
        return look.machine.stat(path).is_ok();
    }
    let dirs = plugins::folders(look.machine, look.settings);
    plugins::find(look.machine, &dirs, &path.display().to_string()).is_some()
}

pub fn check(look: &Context, findings: &mut Findings) {
    let file = path(look);
    let stack = read(look);
    let named = look.settings.get("PlugStackConfig").is_some();
    if named && look.machine.stat(&file).is_err() {
        findings
            .fail(
                NAME,
                format!("PlugStackConfig names {}, which is not there", file.display()),
                "correct the path, or make the file",
            )
            .at(look.place("plugstackconfig"))
            .why("sbatch, srun and salloc know no --gpuos options, and slurmd sets no GPUOS_* variables");
        return;
    }
    for (pattern, place) in &stack.nothing {
        let status = match pattern.contains('*') {
            true => super::findings::Status::Note,
            false => super::findings::Status::Fail,
        };
        findings
            .add(
                NAME,
                status,
                format!("include {pattern}: no file is there"),
                "correct the path of the include",
            )
            .at(place);
    }
    for line in &stack.lines {
        if !there(look, &line.path) {
            gone(line, findings);
        }
        if !["required", "optional"].contains(&line.word.to_ascii_lowercase().as_str()) {
            findings
                .fail(
                    NAME,
                    format!(
                        "a line starts with optional, required or include, not with {}",
                        line.word
                    ),
                    "correct the word",
                )
                .at(&line.place)
                .why("Slurm's commands end with a line that they do not understand");
        }
    }
    let ours: Vec<&Line> = stack.lines.iter().filter(is_ours).collect();
    let near = |line: &&Line| {
        let name = Path::new(&line.path)
            .file_name()
            .and_then(|name| name.to_str());
        name.is_some_and(|name| distance(name, FILE) <= 3)
    };
    match ours[..] {
        [] => {
            let near = stack.lines.iter().find(near);
            let hint = near.map_or(String::new(), |line| {
                format!(" ({} is there: is that meant?)", line.path)
            });
            let why = stack.unreadable.first();
            let why = why.map_or(String::new(), |why| format!(" ({why})"));
            findings
                .fail(
                    NAME,
                    format!(
                        "no line for {FILE} in {}: sbatch knows no --gpuos options{hint}{why}",
                        file.display()
                    ),
                    format!("add to {}: optional {FILE}", file.display()),
                )
                .at(near.map_or_else(|| file.display().to_string(), |line| line.place.clone()));
        }
        [first, ..] => {
            arguments(first, findings);
            if let [_, second, ..] = ours[..] {
                findings
                    .warn(
                        NAME,
                        format!("{FILE} is loaded twice: every option is refused as a duplicate"),
                        "keep one of the lines",
                    )
                    .at(format!("{}, {}", first.place, second.place));
            }
            if !findings.found(NAME) {
                let word = first.word.to_ascii_lowercase();
                let at = first.place.rsplit_once(':').map_or("", |(file, _)| file);
                let check = findings.ok(NAME, format!("{at}: {word} {}", first.path));
                if word == "required" {
                    check.why(
                        "where the file is missing no job can start; with optional they go on",
                    );
                }
            }
        }
    }
}

fn gone(line: &Line, findings: &mut Findings) {
    let fix = "write the full path of the plugin, or its name alone when it lies in PluginDir";
    let near = Path::new(&line.path)
        .file_name()
        .and_then(|name| name.to_str());
    let near = near.is_some_and(|name| name != FILE && distance(name, FILE) <= 3);
    let meant = if near {
        format!("; is {FILE} meant?")
    } else {
        String::new()
    };
    let message = format!("{} does not exist{meant}", line.path);
    let required = line.word.eq_ignore_ascii_case("required");
    let why = match required {
        true => "it is required: no job can start",
        false => "the options and variables of the plugin are missing",
    };
    findings.fail(NAME, message, fix).at(&line.place).why(why);
}
