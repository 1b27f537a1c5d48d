//! What differs between two PBS that were told the same.

use super::look::{Look, Shape, Shapes};
use super::side::Answer;

/// A difference.
pub struct Difference {
    /// Of which kind it is.
    pub kind: &'static str,
    /// Both sides' words.
    pub text: String,
}

/// The first difference of two runs of the same steps.
pub fn answers(stock: &[Answer], gpuos: &[Answer], with_gpuos: bool) -> Option<Difference> {
    let both = stock.iter().zip(gpuos).enumerate();
    // What follows a refusal by rule differs by that.
    let mut both = both.take_while(|(_, (stock, gpuos))| !is_by_rule(stock, gpuos));
    both.find_map(|(at, (stock, gpuos))| {
        let kind = kind(stock, gpuos, with_gpuos)?;
        let text = format!(
            "step {}\nstock: {}\ngpuos: {}",
            at + 1,
            words(stock),
            words(gpuos)
        );
        Some(Difference { kind, text })
    })
}

/// Whether gpuos refuses, by its rule and with its sentence, what stock does: a start for which `qrun -H` names vnodes with fewer GPUs left than the
/// job has asked for, of which some would be given twice.
fn is_by_rule(stock: &Answer, gpuos: &Answer) -> bool {
    let (Answer::Accepted, Answer::Refused(why)) = (stock, gpuos) else {
        return false;
    };
    let number = |before: &str| {
        let (_, rest) = why.split_once(before)?;
        let digits = rest.split(|c: char| !c.is_ascii_digit()).next()?;
        digits.parse::<u64>().ok()
    };
    let (asked, left) = (number("the start would have "), number(", and "));
    why.contains(" are left there; not started") && left.is_some() && asked > left
}

/// Whether a request came to an end by a rule of gpuos.
pub fn by_rule(stock: &[Answer], gpuos: &[Answer]) -> bool {
    let mut both = stock.iter().zip(gpuos);
    both.any(|(stock, gpuos)| is_by_rule(stock, gpuos))
}

fn words(answer: &Answer) -> String {
    match answer {
        Answer::Looked { first, second } if first.shapes == second.shapes => in_words(second),
        Answer::Looked { first, second } => {
            format!("{}, a cycle later {}", in_words(first), in_words(second))
        }
        Answer::Refused(why) => format!("refused: {why}"),
        Answer::Accepted => "accepted".into(),
        Answer::None => "nothing".into(),
    }
}

fn in_words(look: &Look) -> String {
    format!(
        "{:?}, on {:?}, told {:?}, waiting for {:?}",
        look.shapes, look.hosts, look.told, look.comments
    )
}

fn kind(stock: &Answer, gpuos: &Answer, with_gpuos: bool) -> Option<&'static str> {
    match (stock, gpuos) {
        (Answer::Accepted, Answer::Refused(_)) => Some("is refused with gpuos"),
        (Answer::Refused(_), Answer::Accepted) => Some("is refused on stock alone"),
        (
            Answer::Looked { first, second },
            Answer::Looked {
                first: own,
                second: later,
            },
        ) => jobs(
            [&first.shapes, &second.shapes],
            [&own.shapes, &later.shapes],
        )
        .or_else(|| with_gpuos.then(|| told(later)).flatten()),
        _ => None,
    }
}

/// Whether each job is as on stock, now or one cycle later or earlier.
fn jobs(stock: [&Shapes; 2], gpuos: [&Shapes; 2]) -> Option<&'static str> {
    let [now, later] = stock;
    let names = now.keys().chain(later.keys()).chain(gpuos[1].keys());
    names.into_iter().find_map(|name| {
        let of = |all: [&Shapes; 2]| all.map(|shapes| shapes.get(name).cloned());
        let (stock, gpuos) = (of(stock), of(gpuos));
        let same = stock.iter().any(|shape| gpuos.contains(shape));
        let shape = |all: &[Option<Shape>; 2]| all[1].clone().unwrap_or_default();
        (!same).then(|| how(&shape(&stock), &shape(&gpuos)))
    })
}

/// How a job differs.
fn how(stock: &Shape, gpuos: &Shape) -> &'static str {
    let running = |shape: &Shape| shape.states.get("R").copied().unwrap_or(0);
    let (here, there) = (running(stock), running(gpuos));
    if gpuos
        .states
        .keys()
        .any(|state| state.len() > 4 && !state.starts_with("RESV"))
    {
        return "goes nowhere with gpuos";
    }
    match here.cmp(&there) {
        std::cmp::Ordering::Greater if there > 0 => "fewer subjobs run with gpuos",
        std::cmp::Ordering::Greater => "does not run with gpuos",
        std::cmp::Ordering::Less => "runs with gpuos alone",
        _ if stock.given.ngpus > gpuos.given.ngpus => "has fewer GPUs with gpuos",
        _ if stock.given != gpuos.given => "has something else with gpuos",
        _ if stock.exit != gpuos.exit => "ends otherwise with gpuos",
        _ => "is in another state with gpuos",
    }
}

/// Whether a program was told of other GPUs than its job has on its host.
fn told(look: &Look) -> Option<&'static str> {
    let wrong = |(gpus, told): &(u64, String)| match &told[..] {
        "unset" | "" => *gpus > 0,
        told => told.split(',').count() as u64 != *gpus,
    };
    let any = look.told.values().any(wrong);
    any.then_some(TOLD)
}

/// A program was told of other GPUs than its job has: all else is as on stock.
pub const TOLD: &str = "its program is told of other GPUs than it has";

fn looks(answers: &[Answer]) -> impl Iterator<Item = &Look> {
    answers.iter().filter_map(|answer| match answer {
        Answer::Looked { second, .. } => Some(&**second),
        _ => None,
    })
}

/// Whether something of a request has started.
pub fn has_started(answers: &[Answer]) -> bool {
    let own = |look: &Look| look.hosts.keys().any(|name| name.starts_with('j'));
    looks(answers).any(own)
}

/// Whether something of a request was refused.
pub fn is_refused(answers: &[Answer]) -> bool {
    let is = |answer: &Answer| matches!(answer, Answer::Refused(_));
    answers.iter().any(is)
}

/// Whether a job of a request is on other hosts.
pub fn on_other_hosts(stock: &[Answer], gpuos: &[Answer]) -> bool {
    let mut both = looks(stock).zip(looks(gpuos));
    both.any(|(stock, gpuos)| stock.hosts != gpuos.hosts)
}
