//! The forms of the sentences, and what each claims.

use gpuos_model::hostlist::expand;

use super::detail::{detail, row};
use super::forms::{Judged, count, judged_line};
use super::oracle::{If, fits, nodes_with_capacity, offer, units};
use super::world::{Form, PROFILES, Waiting, World, leaf};

pub(super) type Verdict = Result<(), String>;

macro_rules! check {
    ($ok:expr, $($why:tt)*) => {
        if !$ok { return Err(format!($($why)*)); }
    };
}
pub(super) use check;

/// The text between two others, and what follows.
pub(super) fn between<'a>(text: &'a str, from: &str, to: &str) -> Option<(&'a str, &'a str)> {
    text.split_once(from)?.1.split_once(to)
}

pub(super) fn number(text: &str) -> Result<u32, String> {
    let digits: String = text
        .trim()
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().map_err(|_| format!("no number at '{text}'"))
}

/// Labels in `jobs 1, 2 and 3 have`, `job 1 has`.
pub(super) fn labels(text: &str) -> Vec<String> {
    let text = text.trim_start_matches("jobs ").trim_start_matches("job ");
    let text = text.trim_end_matches(" have").trim_end_matches(" has");
    let parts = text.split(", ").flat_map(|part| part.split(" and "));
    parts.map(|part| part.trim().to_string()).collect()
}

pub(super) fn ids(world: &World, labels: &[String]) -> Result<Vec<u32>, String> {
    let id = |label: &String| {
        let mut shown = world.running.iter().filter(|job| !job.hidden);
        let job = shown.find(|job| job.label == *label);
        job.map(|job| job.id)
            .ok_or(format!("'{label}' is no job that runs"))
    };
    labels.iter().map(id).collect()
}

pub(super) fn node(world: &World, name: &str) -> Result<usize, String> {
    let at = world.nodes.iter().position(|node| node.name == name);
    at.ok_or(format!("'{name}' is no node"))
}

pub(super) fn nodes(world: &World, list: &str) -> Result<Vec<usize>, String> {
    let names = expand(list).map_err(|e| e.to_string())?;
    names.iter().map(|name| node(world, name)).collect()
}

/// `GPU n3:5 is out of service`, `node n2 is drained`; it has to be so.
pub(super) fn unavailable(
    world: &World,
    text: &str,
    and: &str,
) -> Result<Vec<(usize, Option<usize>)>, String> {
    let parts = text.split(", ").flat_map(|part| part.split(and));
    parts
        .map(|part| {
            if let Some(rest) = part.strip_prefix("GPU ") {
                let (place, state) = rest.split_once(" is ").ok_or(part)?;
                let (name, gpu) = place.split_once(':').ok_or(part)?;
                let (at, gpu) = (node(world, name)?, number(gpu)? as usize);
                let own = &world.nodes[at];
                let out = match gpu.checked_sub(own.gpus) {
                    Some(nth) => own.pool_out >> nth & 1 == 1,
                    None => own.out >> gpu & 1 == 1,
                };
                check!(out && state == "out of service", "{part}: it is not");
                return Ok((at, Some(gpu)));
            }
            let (name, state) = part
                .strip_prefix("node ")
                .and_then(|rest| rest.split_once(" is "))
                .ok_or(format!("'{part}' is nothing that comes back"))?;
            let at = node(world, name)?;
            let own = &world.nodes[at];
            let has = own
                .state
                .unwrap_or(if own.reserved { "RESERVED" } else { "" });
            let is = match state {
                "drained" => has.contains("DRAIN"),
                "down" => has.contains("DOWN"),
                "in maintenance" => has.contains("MAINT"),
                "reserved" => has.contains("RESERVED"),
                "not responding" => has.contains("NOT_RESPONDING"),
                "not registered yet" => has.contains("UNKNOWN"),
                "not registered as configured" => has.contains("INVAL"),
                _ => false,
            };
            check!(is, "{part}: it is {has:?}");
            Ok((at, None))
        })
        .collect()
}

pub fn waiting(world: &World, job: &Waiting, text: &str, judged: &mut Judged) -> Verdict {
    let mut lines = text.lines();
    let first = lines.next().ok_or("no text")?;
    lead(world, job, first, judged)?;
    judged_line(judged, first);
    let mut table = false;
    for line in lines {
        if line.is_empty() {
            table = false;
        } else if line.starts_with("NODE ") {
            table = true;
        } else if table && line.starts_with('n') && !line.starts_with("note:") {
            row(world, job, line, judged)?;
        } else {
            detail(world, job, line, judged)?;
        }
        judged_line(judged, line);
    }
    Ok(())
}

/// The first sentence.
pub(super) fn lead(world: &World, job: &Waiting, line: &str, judged: &mut Judged) -> Verdict {
    let now = If::default();
    // An array speaks of its tasks, and of one alone where one was asked for.
    let name = match job.head.split_once("ArrayTaskId=1,5-9") {
        Some(_) => format!("{}_[1,5-9]", job.id),
        None => job.label.clone(),
    };
    let rest = line
        .strip_prefix(&format!("Job {name} "))
        .ok_or(format!("it does not speak of {name}"))?;
    if let Some(rest) = rest.strip_prefix("waits after a requeue: ") {
        count(judged, "requeue");
        check!(
            job.restarts > 0 && job.reason == "BeginTime",
            "it was not requeued"
        );
        check!(rest.contains("3 s after the requeue"), "not how long");
        return requeued(
            world,
            job,
            rest.split_once(" requeue. ").ok_or("no more")?.1,
            judged,
        );
    }
    if rest.starts_with("waits, and not for GPUs: ") {
        count(judged, "not for GPUs");
        let words = match job.reason {
            "JobHeldUser" => "its user holds it",
            "Dependency" => "it depends on other jobs",
            "BeginTime" => "--begin",
            "JobArrayTaskLimit" => "the array allows no more tasks",
            _ => "?",
        };
        return match rest.contains(words) {
            true => Ok(()),
            false => Err(format!("its reason is {}", job.reason)),
        };
    }
    let waits_for_room = matches!(job.reason, "Resources" | "Priority" | "None");
    check!(waits_for_room, "its reason is {}", job.reason);
    if rest.contains("asks for no GPU") {
        count(judged, "no GPU");
        check!(job.form == Form::None, "it asks for {:?}", job.form);
        return Ok(());
    }
    check!(job.form != Form::None, "it asks for no GPU");
    if let Some(why) = rest.strip_prefix("would fit now, but waits: ") {
        count(
            judged,
            if matches!(job.form, Form::Mig(..)) {
                "slices fit"
            } else {
                "fits"
            },
        );
        check!(fits(world, job, &now), "it does not fit now");
        let words = match job.reason {
            _ if job.label.contains('+') && !matches!(job.form, Form::Mig(..)) => "all components",
            "Priority" => "jobs with a higher priority come first",
            "None" => "the scheduler has not looked at it yet",
            _ => "",
        };
        check!(why.contains(words), "that is not {}", job.reason);
        return Ok(());
    }
    check!(!fits(world, job, &now), "it fits now");
    let rest = rest
        .strip_prefix("waits. ")
        .or(rest.strip_prefix("waits: "));
    sentence(world, job, rest.ok_or("of no form that is known")?, judged)
}

/// Why there is no room now, or what that is about.
pub(super) fn sentence(world: &World, job: &Waiting, text: &str, judged: &mut Judged) -> Verdict {
    let now = If::default();
    if let Some((away_text, rest)) = between(
        text,
        "It cannot start while ",
        ", not even when all running jobs have ended.",
    ) {
        count(judged, "not while");
        check!(rest.is_empty(), "more: {rest}");
        let items = unavailable(world, away_text, " or ")?;
        check!(
            !fits(world, job, &If::empty()),
            "the end of the jobs is enough"
        );
        check!(fits(world, job, &If::sound()), "it can never start");
        for item in &items {
            let mut all = all_unavailable(world);
            all.retain(|other| other != item);
            let case = If {
                back: all,
                ..If::empty()
            };
            check!(!fits(world, job, &case), "it fits without {item:?}");
        }
        let enough = If {
            back: items,
            ..If::empty()
        };
        check!(fits(world, job, &enough), "they are not enough");
        return Ok(());
    }
    if let Some((away_text, _)) = between(
        text,
        "not even when all running jobs have ended: ",
        "; the end of that would be enough.",
    ) {
        count(judged, "enough back");
        let items = unavailable(world, away_text, " and ")?;
        check!(
            !fits(world, job, &If::empty()),
            "the end of the jobs is enough"
        );
        let enough = If {
            back: items,
            ..If::empty()
        };
        check!(fits(world, job, &enough), "that is not enough");
        return Ok(());
    }
    if let Some((why, rest)) = between(
        text,
        "The job can never start as it is: ",
        ". Submit it again with a smaller request.",
    ) {
        count(judged, "never");
        check!(rest.is_empty(), "more: {rest}");
        check!(
            !fits(world, job, &If::sound()),
            "it would fit if all were up and idle"
        );
        return never(world, job, why);
    }
    if let Some((numbers, rest)) = between(
        text,
        "Not enough room now: of the ",
        " enough free GPUs, CPUs and memory.",
    ) {
        count(judged, "named");
        check!(rest == " It starts when all of them have.", "more: {rest}");
        let (all, have) = numbers
            .split_once(" that the job names, ")
            .ok_or("no numbers")?;
        let with = job
            .named
            .iter()
            .filter(|at| units(job, offer(world, job, **at, &now)) > 0);
        check!(
            number(all)? as usize == job.named.len() && number(have)? as usize == with.count(),
            "wrong numbers"
        );
        return Ok(());
    }
    if let Some(rest) = text.strip_prefix("Not enough room now: ") {
        count(judged, "capacity");
        return capacity(world, job, rest);
    }
    if let Some(rest) = text.strip_prefix("The job requires one ") {
        count(judged, "level");
        return level(world, job, rest);
    }
    if text == "No node that it may use has room now." {
        count(judged, "no room");
        check!(
            nodes_with_capacity(world, job, &now) == 0,
            "a node has room for a part of it"
        );
        return Ok(());
    }
    if let Some((found, rest)) = text.split_once(" room for ") {
        count(judged, "slices");
        let Form::Mig(profile, _) = job.form else {
            return Err("it asks for no slices".into());
        };
        let what = rest
            .strip_suffix(
                " now: free slices count only where they make whole placements that the board has.",
            )
            .ok_or("another form")?;
        check!(
            what == PROFILES[profile].0,
            "it asks for {}",
            PROFILES[profile].0
        );
        let have = nodes_with_capacity(world, job, &now);
        if let Some((all, found)) = between(found, "of the ", " that the job names, ") {
            let with = job
                .named
                .iter()
                .filter(|at| units(job, offer(world, job, **at, &now)) > 0);
            check!(
                number(all)? as usize == job.named.len() && number(found)? as usize == with.count(),
                "wrong numbers"
            );
        } else if found.starts_with("no node that it may use has") {
            check!(have == 0, "{have} have");
        } else {
            let (some, rest) = found.split_once(" of ").ok_or("no numbers")?;
            check!(
                number(some)? == have && number(rest)? == job.min,
                "{have} have, {} needed",
                job.min
            );
        }
        return Ok(());
    }
    Err(format!("a sentence of no form that is known: {text}"))
}

pub(super) fn all_unavailable(world: &World) -> Vec<(usize, Option<usize>)> {
    let mut all = Vec::new();
    for (at, node) in world.nodes.iter().enumerate() {
        all.push((at, None));
        all.extend((0..16).map(|gpu| (at, Some(gpu))).filter(|_| node.gpus > 0));
    }
    all
}

/// `1 node needed with …, 0 found; 5 GPUs needed, 2 free for it. It needs at least 1 more node with room.`
pub(super) fn capacity(world: &World, job: &Waiting, text: &str) -> Verdict {
    let now = If::default();
    let needed = number(text)?;
    let (found, rest) = between(text, "CPUs and memory, ", " found; ").ok_or("no numbers")?;
    let (found, gpus) = (number(found)?, number(rest)?);
    let free = number(
        between(rest, " needed, ", " free for it.")
            .ok_or("no numbers")?
            .0,
    )?;
    let have = nodes_with_capacity(world, job, &now);
    check!(found == have, "{have} nodes have room");
    let asks = match job.form {
        Form::Each(each) => each * job.min,
        Form::Total(all) => all,
        Form::Task(each, tasks) => each * tasks,
        _ => 0,
    };
    check!(gpus == asks, "it asks for {asks}");
    let offers = (0..world.nodes.len()).map(|at| offer(world, job, at, &now));
    let usable: u32 = offers
        .clone()
        .filter(|offer| offer.usable)
        .map(|offer| offer.free.count_ones())
        .sum();
    check!(free <= usable, "{usable} are free on nodes that it may use");
    if let Form::Each(_) = job.form {
        check!(free == usable, "{usable} are free on nodes that it may use");
    }
    let rest = text.split_once(" free for it. ").ok_or("no more")?.1;
    if let Some(more) = rest.strip_prefix("It needs at least ") {
        let more = number(more)?;
        check!(more + found == needed, "{more} more are not {needed}");
        check!(needed <= job.max, "it may have {}", job.max);
        return Ok(());
    }
    if let Some(more) = rest.strip_prefix("It needs ") {
        check!(number(more)? + free == gpus, "wrong difference");
        return Ok(());
    }
    Err(format!("a sentence of no form that is known: {rest}"))
}

/// `leaf domain, and none has room now: leaf1 comes nearest, with 0 of 2 nodes free. It starts …`
pub(super) fn level(world: &World, job: &Waiting, text: &str) -> Verdict {
    let now = If::default();
    let word = text
        .split_once(", and none has room now: ")
        .ok_or("another form")?
        .0;
    let (level, required) = job.level.ok_or("it requires no level")?;
    check!(
        required && word.starts_with(level),
        "it requires {:?}",
        job.level
    );
    let free = Waiting {
        level: None,
        ..job.clone()
    };
    check!(
        fits(world, &free, &now),
        "it does not fit as preferred either"
    );
    if let Some((best, rest)) = between(text, "none has room now: ", " comes nearest, with ") {
        let inside: Vec<usize> = match level {
            "node" => vec![node(world, best)?],
            "leaf" => (0..world.nodes.len())
                .filter(|at| format!("leaf{}", leaf(*at) + 1) == best)
                .collect(),
            _ => (0..world.nodes.len()).collect(),
        };
        let have = number(rest)?;
        let of_nodes = rest
            .split_once(" free")
            .is_some_and(|(words, _)| words.contains("node"));
        let each = inside
            .iter()
            .map(|at| units(job, offer(world, job, *at, &now)));
        let is = match of_nodes {
            true => each.filter(|units| *units > 0).count() as u32,
            false => inside
                .iter()
                .map(|at| offer(world, job, *at, &now))
                .filter(|offer| offer.usable)
                .map(|offer| offer.free.count_ones())
                .sum(),
        };
        check!(have == is || !of_nodes && have <= is, "{best} has {is}");
    }
    Ok(())
}

/// Why a job can never start.
pub(super) fn never(world: &World, job: &Waiting, why: &str) -> Verdict {
    let sound = If::sound();
    let offers: Vec<u32> = (0..world.nodes.len())
        .map(|at| units(job, offer(world, job, at, &sound)))
        .collect();
    if let Some((_, rest)) = between(why, "CPUs and memory for them; there ", " ") {
        let with = offers.iter().filter(|units| **units > 0).count() as u32;
        check!(number(rest)? == with, "there are {with}");
        return Ok(());
    }
    if let Some((_, rest)) = why.split_once("there is room for ") {
        let mut sizes: Vec<u32> = offers.clone();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let each = if let Form::Task(each, _) = job.form {
            each
        } else {
            1
        };
        let most: u32 = sizes.iter().take(job.max as usize).sum::<u32>() * each;
        check!(number(rest)? <= most, "{most} at most");
        return Ok(());
    }
    if let Some((name, _)) = between(why, "names node ", ", which has no room") {
        check!(offers[node(world, name)?] == 0, "{name} has room");
        return Ok(());
    }
    if why.contains("no domain of the level") && job.level.is_some()
        || why.contains("no set of its nodes")
        || why.contains("too few nodes have GPUs")
        || why.contains("cannot use")
    {
        return Ok(());
    }
    Err(format!("a reason of no form that is known: {why}"))
}

pub(super) fn requeued(world: &World, job: &Waiting, text: &str, judged: &mut Judged) -> Verdict {
    count(judged, "requeue");
    check!(
        text.starts_with("It was requeued once") && job.restarts == 1,
        "it was requeued {} times",
        job.restarts
    );
    let place = job.note.split_once("gpus=").map_or("", |(_, place)| place);
    let (name, gpu) = place.split_once(':').ok_or("no place")?;
    let at = node(world, name)?;
    let (own, gpu) = (&world.nodes[at], number(gpu)?);
    let out = own.out >> gpu & 1 == 1;
    let gone = own.state.is_some();
    check!(
        text.contains(&format!("GPU {name}:{gpu}, which is out of service now")) == (out && !gone),
        "the GPU: {out}"
    );
    check!(
        text.contains("are in service.") == (!out && !gone),
        "is it in service? {out} {gone}"
    );
    check!(
        text.contains("It keeps off") != job.excluded.is_empty(),
        "excluded: {:?}",
        job.excluded
    );
    Ok(())
}
