//! Names that a screen or a script would take for more than a name.

use crate::attempt::{Attempt, Wave, attempt, ensure, judge};
use crate::stage::Stage;
use crate::users::EVE;

/// SECURITY.md's name of the input.
const INPUT: &str = "Names of jobs on screens";

/// The attempts.
pub fn all() -> Vec<Attempt> {
    let clean = "screens show no control character and no change of direction, JSON is valid";
    let long = "x".repeat(10_000);
    let marked = "$(touch PWNED);`touch PWNED`|touch PWNED";
    let names: [(&str, String, bool); 14] = [
        ("clears the screen", "a\u{1b}[2J\u{1b}[Hb".into(), true),
        (
            "sets the terminal's title",
            "a\u{1b}]0;root\u{7}b".into(),
            true,
        ),
        (
            "asks the terminal for an answer",
            "a\u{1b}[6n\u{1b}P+q\u{1b}\\b".into(),
            false,
        ),
        (
            "goes back in its line",
            "a\r\u{8}\u{8}\u{8}JobId=1".into(),
            false,
        ),
        (
            "uses controls of eight bits",
            "a\u{9b}2J\u{85}b".into(),
            false,
        ),
        (
            "turns the direction round",
            "a\u{202e}tool\u{2066}b\u{2069}".into(),
            true,
        ),
        (
            "has separators of lines",
            "a\u{2028}b\u{2029}c".into(),
            false,
        ),
        ("has 10,000 characters", long, false),
        ("is blank", "   ".into(), false),
        ("has formats", "%s%n%n%x%08x{}{0}{:?}\\n".into(), false),
        ("has quotes", "a\"b'c\\\"d\\".into(), false),
        ("has a shell's words", marked.into(), false),
        (
            "has letters of HTML and of Prometheus",
            "<b>x</b>\",job=\"y\"} 1 #".into(),
            false,
        ),
        ("starts with a minus", "--force -rf /".into(), false),
    ];
    let made = names.into_iter().map(|(name, text, short)| {
        let made = attempt(INPUT, format!("a job's name {name}"), clean, move |stage| {
            // What JSON has to write in another form.
            let is_quoted = text.contains(['"', '\u{1b}', '\u{2028}']);
            let option = format!("--job-name={text}");
            let job = stage.sbatch(EVE, &["-H", "--gres=gpu:1", &option], "true");
            judge(move |stage| {
                // Slurm itself may take no such name.
                let Ok(job) = job else { return Ok(()) };
                let why = stage.gpuos(&["why", &job.to_string()]);
                is_clean("why", &why)?;
                if is_quoted {
                    let told = stage.gpuos(&["why", &job.to_string(), "--json"]);
                    is_json("why", &told)?;
                }
                is_clean(
                    "top",
                    &row(
                        &stage.screen(&top(stage).each_ref().map(String::as_str)),
                        job,
                    ),
                )
            })
        });
        let made = made.in_wave(Wave::Unchecked);
        match short {
            true => made.short(),
            false => made,
        }
    });
    let mut all: Vec<Attempt> = made.collect();
    let last = attempt(
        INPUT,
        "all of these names at once, on every screen",
        clean,
        |_: &Stage| judge(everywhere),
    );
    all.push(last.in_wave(Wave::Unchecked).short());
    all
}

fn top(stage: &Stage) -> [String; 4] {
    let runtime = stage.runtime("n1").display().to_string();
    [
        "top".into(),
        "--once".into(),
        "--runtime-dir".into(),
        runtime,
    ]
}

/// What of a table is about a job: from its number on until the next line that begins with one.
fn row(text: &str, job: u32) -> String {
    let number = |line: &&str| line.starts_with(|c: char| c.is_ascii_digit());
    let own = format!("{job} ");
    let mut lines = text.lines().skip_while(|line| !line.starts_with(&own));
    let first = lines.next().unwrap_or_default();
    let more = lines.take_while(|line| !number(line) && !line.is_empty());
    [first]
        .into_iter()
        .chain(more)
        .collect::<Vec<_>>()
        .join("\n")
}

/// What every command shows while such jobs are there.
fn everywhere(stage: &Stage) -> Result<(), String> {
    let runtime = stage.runtime("n1").display().to_string();
    for words in [
        &["top", "--once", "--runtime-dir", &runtime][..],
        &["health", "--runtime-dir", &runtime],
        &["mig", "--runtime-dir", &runtime],
        &["plan", "--gpus", "8"],
        &["topo"],
        &["doctor"],
    ] {
        is_clean(words[0], &stage.screen(words))?;
    }
    is_json(
        "top",
        &stage.screen(&["top", "--json", "--runtime-dir", &runtime]),
    )?;
    for name in ["PWNED", "work/PWNED"] {
        ensure(!stage.path(name).exists(), || format!("{name} was made"))?;
    }
    Ok(())
}

fn is_clean(command: &str, text: &str) -> Result<(), String> {
    let wrong = |c: &char| {
        let control = c.is_control() && *c != '\n';
        control
            || matches!(c, '\u{200e}' | '\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let found = text
        .lines()
        .find_map(|line| Some((line, line.chars().find(wrong)?)));
    match found {
        None => Ok(()),
        Some((line, c)) => {
            let line: String = line
                .chars()
                .take(120)
                .flat_map(char::escape_debug)
                .collect();
            Err(format!("gpuos {command} shows {c:?}: {line}"))
        }
    }
}

fn is_json(command: &str, text: &str) -> Result<(), String> {
    let read = serde_json::from_str::<serde_json::Value>(text);
    read.map(drop)
        .map_err(|e| format!("gpuos {command} --json: {e}: {text}"))
}
