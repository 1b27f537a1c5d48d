//! What a job says to gpuos by the options of Torque's qsub, on its command line and in its script, read as qsub reads them.

use crate::batch::{VARIABLE, wish};
use crate::refused;

/// Options of qsub that take a value.
const WITH_VALUE: &str = "aAbcCdDeFijJkKlLmMNopPqrSTtuvwW";

/// How qsub marks options in a script, where `-C` names nothing else.
const DIRECTIVE: &str = "#PBS";

/// Where the value of a variable comes from.
#[derive(Clone, PartialEq, Eq, Debug)]
enum Source {
    /// The option itself.
    Written(String),
    /// The environment of qsub, by `-V` or a name without a value.
    Environment,
}

/// What the options of a job say to gpuos.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Submission {
    wish: Option<Source>,
    /// A resource of gpuos's in `-l`, which Torque has none of.
    resource: Option<(String, String)>,
}

impl Submission {
    /// Reads the arguments of qsub, which come before a script, and the script's directives. Lines after the first command are not
    /// qsub's.
    pub fn read(script: &str, arguments: &[String]) -> Submission {
        let given = options(arguments);
        let prefix = given.iter().rev().find(|option| option.letter == 'C');
        let prefix = prefix.map_or(DIRECTIVE, |option| &option.value);
        let mut all = Submission::default();
        for words in directives(script, prefix) {
            all.add(&options(&words));
        }
        all.add(&given);
        all
    }

    /// Holds it against what there is; `environment` is the wish in that of qsub, empty where there is none.
    ///
    /// # Errors
    /// The sentence for who submitted the job.
    pub fn check(&self, environment: &str) -> Result<(), String> {
        if let Some((name, value)) = &self.resource {
            let named = format!("-l {name}");
            let instead = format!("-v {VARIABLE}=VALUE");
            return Err(refused::not_here(value, named, instead).to_string());
        }
        match &self.wish {
            Some(Source::Written(value)) => wish(value),
            Some(Source::Environment) => wish(environment),
            None => return Ok(()),
        }
        .map(|_| ())
    }

    fn add(&mut self, options: &[Switch]) {
        for option in options {
            let mut pairs = option.value.split(',').map(str::trim);
            match option.letter {
                'v' => {
                    let mut named = pairs.filter_map(|pair| match pair.split_once('=') {
                        Some((VARIABLE, "")) => Some(Source::Environment),
                        Some((VARIABLE, value)) => Some(Source::Written(value.into())),
                        _ => (pair == VARIABLE).then_some(Source::Environment),
                    });
                    self.wish = named.next_back().or(self.wish.take());
                }
                'V' if self.wish.is_none() => self.wish = Some(Source::Environment),
                'l' => {
                    let ours = pairs.find(|pair| pair.starts_with("gpuos_"));
                    if let Some(pair) = ours {
                        let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
                        self.resource = Some((name.into(), value.into()));
                    }
                }
                _ => {}
            }
        }
    }
}

/// An option as getopt finds it.
struct Switch {
    letter: char,
    /// Empty where the option takes none.
    value: String,
}

/// Options among words, as getopt reads them: `-l x`, `-lx`, `-Vl x`. What is no option is passed over.
fn options(words: &[String]) -> Vec<Switch> {
    let mut found = Vec::new();
    let mut words = words.iter();
    while let Some(word) = words.next() {
        if word == "--" {
            break;
        }
        let Some(letters) = word.strip_prefix('-').filter(|rest| !rest.starts_with('-')) else {
            continue;
        };
        let mut letters = letters.chars();
        while let Some(letter) = letters.next() {
            let takes = WITH_VALUE.contains(letter);
            let value = match (takes, letters.as_str()) {
                (false, _) => String::new(),
                // Torque calls a submit filter with `-C` alone and leaves its value out.
                (true, "")
                    if letter == 'C'
                        && words.as_slice().first().is_none_or(|next| is_option(next)) =>
                {
                    String::new()
                }
                (true, "") => words.next().cloned().unwrap_or_default(),
                (true, rest) => rest.into(),
            };
            found.push(Switch { letter, value });
            if takes {
                break;
            }
        }
    }
    found
}

fn is_option(word: &str) -> bool {
    word.starts_with('-')
}

/// The words of each directive of a script; none where nothing marks them.
fn directives(script: &str, prefix: &str) -> Vec<Vec<String>> {
    let mut found = Vec::new();
    let mut lines = script.lines();
    while let Some(line) = lines.next() {
        let text = line.trim_start();
        if let Some(rest) = text.strip_prefix(prefix).filter(|_| !prefix.is_empty()) {
            let mut whole = rest.to_string();
            while whole.ends_with('\\')
                && let Some(next) = lines.next()
            {
                whole.pop();
                whole += next;
            }
            found.push(words(&whole));
        } else if !text.is_empty() && !text.starts_with('#') && !line.starts_with(':') {
            break;
        }
    }
    found
}

/// Words between blanks, with quotes and backslashes as a shell has them.
fn words(line: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut word: Option<String> = None;
    let mut quote = None;
    let mut characters = line.chars();
    while let Some(c) = characters.next() {
        match (quote, c) {
            (Some(end), c) if c == end => quote = None,
            (Some(_), c) => word.get_or_insert_default().push(c),
            (None, '"' | '\'') => {
                quote = Some(c);
                word.get_or_insert_default();
            }
            (None, '\\') => word.get_or_insert_default().extend(characters.next()),
            (None, c) if c.is_whitespace() => found.extend(word.take()),
            (None, c) => word.get_or_insert_default().push(c),
        }
    }
    found.extend(word);
    found
}
