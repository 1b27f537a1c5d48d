//! The lines that follow the first sentence: details, tables, what runs.

use super::forms::{Judged, count, judged_line};
use super::oracle::{If, ends_until, fits, level_of, narrowest, offer, places};
use super::print::{at, list};
use super::read::{Verdict, between, check, ids, labels, node, nodes, number, requeued, sentence};
use super::world::{
    End, Form, GPU_MIB, KEPT_MIB, PROFILES, Running, SLICES, Waiting, World, memory_option,
};

/// A line of the details.
pub(super) fn detail(world: &World, job: &Waiting, line: &str, judged: &mut Judged) -> Verdict {
    let now = If::default();
    if line.starts_with("It asks for ") {
        count(judged, "asks");
        return asks(job, line);
    }
    if let Some(rest) = line.strip_prefix("Of the ") {
        count(judged, "host memory");
        return host_memory(world, job, rest, judged);
    }
    if line.starts_with("It was requeued ") {
        return requeued(world, job, line, judged);
    }
    if let Some((option, place)) =
        between(line, ": ", ". It would get ").filter(|_| line.starts_with("Smallest "))
    {
        count(judged, "smallest");
        let with = changed(job, option)?;
        check!(fits(world, &with, &now), "with {option} it does not fit");
        return place_is_free(world, &with, place);
    }
    if line == "No smaller request of this kind would start now." {
        count(judged, "nothing smaller");
        for option in smaller(job) {
            let with = changed(job, &option)?;
            check!(!fits(world, &with, &now), "{option} would start now");
        }
        return Ok(());
    }
    if let Some((when, rest)) = between(line, "Expected: at ", " at the latest, when ") {
        count(judged, "room at");
        let gone = ids(
            world,
            &labels(rest.split_once(" ended (").ok_or("another form")?.0),
        )?;
        let ends = world
            .running
            .iter()
            .filter(|job| gone.contains(&job.id))
            .map(|job| match job.end {
                End::In(minutes) => Some(minutes),
                End::Never | End::Year => None,
            });
        let ends: Option<Vec<u32>> = ends.collect();
        let last = ends
            .ok_or("one of them has no end")?
            .into_iter()
            .max()
            .ok_or("nobody")?;
        check!(at(last) == when, "the last of them ends at {}", at(last));
        check!(
            fits(world, job, &If::ended(gone)),
            "their end is not enough"
        );
        check!(
            fits(world, job, &If::ended(ends_until(world, last))),
            "not at that time"
        );
        return Ok(());
    }
    if let Some((jobs, rest)) = between(line, "There is room when ", " ended, and no end of ")
        && jobs != "jobs have"
    {
        count(judged, "room after");
        let named = labels(jobs);
        let gone = ids(world, &named)?;
        let open = rest
            .split_once(" is known: no time limit.")
            .ok_or("another form")?
            .0;
        let open = if open == "it" {
            named.clone()
        } else {
            labels(open)
        };
        let endless = |id: &u32| {
            world
                .running
                .iter()
                .any(|job| job.id == *id && !matches!(job.end, End::In(_)))
        };
        let should: Vec<u32> = gone.iter().copied().filter(endless).collect();
        check!(ids(world, &open)? == should, "{should:?} have no end");
        check!(
            fits(world, job, &If::ended(gone)),
            "their end is not enough"
        );
        check!(
            !fits(world, job, &If::ended(ends_until(world, u32::MAX))),
            "those with an end are enough"
        );
        return Ok(());
    }
    if line.starts_with("There is room when jobs have ended that slurmctld does not show") {
        count(judged, "unseen");
        let shown = world.running.iter().filter(|job| !job.hidden);
        let shown = shown.map(|job| job.id).collect();
        check!(
            !fits(world, job, &If::ended(shown)),
            "those that are shown are enough"
        );
        check!(
            fits(world, job, &If::empty()),
            "even without jobs it does not fit"
        );
        return Ok(());
    }
    if let Some((numbers, rest)) = line.split_once(" out of service: ") {
        count(judged, "out of service");
        let all: usize = world.nodes.iter().map(|node| node.gpus).sum();
        let out: u32 = world
            .nodes
            .iter()
            .map(|node| (node.out & ((1 << node.gpus) - 1)).count_ones())
            .sum();
        check!(
            numbers.starts_with(&format!("{out} of {all} GPU")),
            "{out} of {all} are"
        );
        for part in rest.trim_end_matches('.').split(", ") {
            let mut words = part.split(' ');
            let at = node(world, words.next().unwrap_or(""))?;
            for gpu in words {
                let gpu = number(gpu.trim_start_matches("gpu"))?;
                check!(world.nodes[at].out >> gpu & 1 == 1, "{part}: it is not");
            }
        }
        return Ok(());
    }
    if let Some(place) = line.strip_prefix("Its place now: ") {
        count(judged, "its place");
        return match job.form {
            Form::Mig(..) => Ok(()),
            _ => place_is_free(world, job, place),
        };
    }
    if let Some(rest) = line.strip_prefix("Now ") {
        return sentence(world, job, rest, judged);
    }
    if line.starts_with("Not enough room now: ") || line.starts_with("The job requires one ") {
        return sentence(world, job, line, judged);
    }
    // No claim on this cluster.
    let known = [
        "Nodes are compared with all sizes of jobs",
        "note: ",
        "Of places with equal",
    ];
    match known.iter().any(|known| line.starts_with(known)) {
        true => Ok(()),
        false => sentence(world, job, line, judged),
    }
}

fn asks(job: &Waiting, line: &str) -> Verdict {
    let words = match job.form {
        Form::Each(gpus) => format!("for {gpus} GPU"),
        Form::Total(gpus) => format!("for {gpus} GPU"),
        Form::Task(each, tasks) => format!(
            "for {each} GPU{} for each of {tasks} task",
            if each == 1 { "" } else { "s" }
        ),
        Form::Mig(profile, count) => format!(
            "for {}:{count} on each of {} node",
            PROFILES[profile].0, job.min
        ),
        Form::None => return Err("it asks for none".into()),
    };
    check!(line.contains(&words), "it asks {words}");
    check!(
        line.contains("nodes whole") == job.whole,
        "whole: {}",
        job.whole
    );
    let level = job.level.filter(|(_, required)| *required);
    check!(
        line.contains(":required") == level.is_some(),
        "level: {:?}",
        job.level
    );
    Ok(())
}

/// Where an option stands, and how far that is known: before 26.05 Slurm does not show sbatch's command line.
fn said_of_option(world: &World) -> (&'static str, &'static str) {
    match world.release {
        "26.05.5" => ("", ""),
        _ => (
            " of its batch script",
            ", unless sbatch's command line said otherwise",
        ),
    }
}

/// `700 MiB of each node's memory that it asks for, 90 MiB are what --gpuos-mem=80625M takes of the host for 1 GPU.`
fn host_memory(world: &World, job: &Waiting, rest: &str, judged: &mut Judged) -> Verdict {
    check!(job.beyond > 0, "it has no --gpuos-mem");
    let gpus = job.gpus_of_node().ok_or("a form that can be more")?;
    let share = job.beyond * gpus;
    let (own, rest) = between(rest, ", ", " MiB are what ").ok_or("no numbers")?;
    check!(own == share.to_string(), "it is {share} MiB");
    let option = memory_option(job.beyond);
    let (place, unless) = said_of_option(world);
    let s = if gpus == 1 { "" } else { "s" };
    let taken = format!("{option}{place} takes of the host for {gpus} GPU{s}{unless}.");
    let more = rest.strip_prefix(&taken).ok_or(taken)?;
    let less = Waiting {
        memory: job.memory - share,
        ..job.clone()
    };
    let now = If::default();
    let room = fits(world, &less, &now) && !fits(world, job, &now);
    if more == " Without these there would be room for it now." {
        count(judged, "without host memory");
        check!(room, "there would be no room without it");
        return Ok(());
    }
    check!(
        more.is_empty() && !room,
        "without it there is room: {room}, {more}"
    );
    Ok(())
}

/// `2 GPUs on 1 node (n3), in one node; …`: the nodes have so many free, and they are a place for the job.
fn place_is_free(world: &World, job: &Waiting, text: &str) -> Verdict {
    let (list, _) = between(text, "(", ")").ok_or("no nodes")?;
    let mut on = nodes(world, list)?;
    on.sort_unstable();
    let all = places(world, job, &If::default());
    check!(all.contains(&on), "{list} is no place: {all:?}");
    Ok(())
}

/// A row of the table of a place: the GPUs are free.
pub(super) fn row(world: &World, job: &Waiting, line: &str, judged: &mut Judged) -> Verdict {
    if matches!(job.form, Form::Mig(..)) {
        return Ok(());
    }
    count(judged, "row");
    let words: Vec<&str> = line.split_whitespace().collect();
    let at = node(world, words[0])?;
    let free = offer(world, job, at, &If::default()).free;
    let Some(indices) = words
        .iter()
        .rev()
        .find(|word| word.starts_with(|c: char| c.is_ascii_digit()))
    else {
        return Ok(());
    };
    let Some(set) = gpuos_placement::explain::parse_gpus(indices) else {
        return Ok(());
    };
    check!(
        job.whole || set.0 & !free == 0,
        "GPUs {indices} of {} are not free ({})",
        words[0],
        list(free)
    );
    Ok(())
}

/// The job with an option of the command line.
fn changed(job: &Waiting, option: &str) -> Result<Waiting, String> {
    let mut with = job.clone();
    let (name, value) = option.split_once('=').unwrap_or((option, ""));
    match (name, with.form) {
        ("--nodes", _) => {
            let (min, max) = value.split_once('-').unwrap_or((value, value));
            (with.min, with.max) = (number(min)?, number(max)?);
        }
        ("--gpus-per-node", Form::Each(_)) => with.form = Form::Each(number(value)?),
        ("--gpus", _) => with.form = Form::Total(number(value)?),
        ("--ntasks", Form::Task(each, _)) => with.form = Form::Task(each, number(value)?),
        ("no --exclusive", _) => with.whole = false,
        ("--gpuos-topology", _) => {
            let (level, word) = value.split_once(':').ok_or("no level")?;
            let level = ["leaf", "spine", "node"]
                .into_iter()
                .find(|known| *known == level);
            with.level = Some((level.ok_or("no level")?, word == "required"));
        }
        _ => return Err(format!("an option of no form that is known: {option}")),
    }
    Ok(with)
}

/// Requests of the same kind with less.
fn smaller(job: &Waiting) -> Vec<String> {
    let mut all = Vec::new();
    match job.form {
        Form::Each(gpus) => {
            all.extend((job.named.len().max(1) as u32..job.min).map(|n| format!("--nodes={n}")));
            all.extend((1..gpus).map(|gpus| format!("--gpus-per-node={gpus}")));
        }
        Form::Total(gpus) => all.extend((job.min..gpus).map(|gpus| format!("--gpus={gpus}"))),
        Form::Task(_, tasks) => {
            all.extend((job.min..tasks).map(|tasks| format!("--ntasks={tasks}")))
        }
        Form::Mig(..) | Form::None => {}
    }
    if job.whole {
        all.push("no --exclusive".into());
    }
    all
}

/// Where its memory lies by its option.
fn tiers(world: &World, job: &Running, line: &str, judged: &mut Judged) -> Verdict {
    let said = line.split_once(" By --gpuos-mem=");
    check!(said.is_some() == (job.beyond > 0), "it has {}", job.beyond);
    let Some((_, said)) = said else {
        return Ok(());
    };
    count(judged, "tiers");
    judged_line(judged, line);
    let gib = |text: &str| text.trim().parse::<f64>().map_err(|_| text.to_string());
    let (all, rest) = between(said, " has ", " GiB: ").ok_or("no size")?;
    let (own, rest) = rest
        .split_once(" GiB in its own memory and ")
        .ok_or("no own")?;
    let (place, unless) = said_of_option(world);
    let end = format!(" GiB in the host's{unless}. ");
    let (host, rest) = rest.split_once(&end).ok_or("no host")?;
    check!(line.contains(&format!("{place} each of")), "{place}");
    let is =
        |text: &str, mib: u64| Ok::<_, String>((gib(text)? - mib as f64 / 1024.0).abs() < 0.051);
    let kept = GPU_MIB - KEPT_MIB;
    check!(
        is(all, kept + job.beyond)? && is(own, kept)? && is(host, job.beyond)?,
        "it has {} MiB of the host's for each GPU",
        job.beyond
    );
    let command = format!("`gpuos mem show {} --node=", job.label);
    check!(rest.starts_with(&command), "no command to go on with");
    Ok(())
}

pub fn running(world: &World, job: &Running, text: &str, judged: &mut Judged) -> Verdict {
    let first = text.lines().next().ok_or("no text")?;
    let rest = first
        .strip_prefix(&format!("Job {} runs: ", job.label))
        .ok_or("it does not say that it runs")?;
    if !job.mig.is_empty() {
        count(judged, "instance");
        let profile = job.mig.trim_end_matches(":1");
        for (at, _, slices) in &job.on {
            let own = &world.nodes[*at];
            let start = slices.trailing_zeros() as usize;
            let (gpu, start, size) = (
                own.gpus + start / SLICES,
                start % SLICES,
                slices.count_ones() as usize,
            );
            let on = match size {
                1 => format!("memory slice {start}"),
                size => format!("memory slices {start}-{}", start + size - 1),
            };
            let words = format!("{profile} on GPU {gpu} of {} ({on})", own.name);
            check!(rest.contains(&words), "it has {words}");
        }
        judged_line(judged, first);
        return Ok(());
    }
    count(judged, "runs");
    judged_line(judged, first);
    tiers(world, job, first, judged)?;
    let on: Vec<usize> = job.on.iter().map(|on| on.0).collect();
    let gpus: u32 = job.on.iter().map(|on| on.1.count_ones()).sum();
    check!(number(rest)? == gpus, "it has {gpus}");
    let (list, _) = between(rest, "(", ")").ok_or("no nodes")?;
    check!(nodes(world, list)? == on, "it is on {on:?}");
    let here = level_of(&on);
    let word = match here {
        1 => rest.contains(", in one node") || rest.contains("all linked by NVLink"),
        2 => rest.contains(", inside leaf "),
        _ => rest.contains(", inside spine "),
    };
    check!(word, "its level is {here}");
    // The same job in an empty cluster: on any number of nodes where it asked for GPUs in all.
    let each = job.on[0].1.count_ones();
    let again = Waiting {
        form: if job.total {
            Form::Total(gpus)
        } else {
            Form::Each(each)
        },
        min: if job.total { 1 } else { on.len() as u32 },
        max: on.len() as u32,
        cpus: job.cpus,
        memory: job.memory,
        partition: world.nodes[on[0]].partition,
        named: Vec::new(),
        excluded: Vec::new(),
        whole: false,
        level: None,
        ..world.waiting[0].clone()
    };
    let best = narrowest(&places(world, &again, &If::sound()))
        .unwrap_or(here)
        .min(here);
    for line in text.lines().skip(1) {
        if line == "No place in an empty cluster would be better." {
            count(judged, "no better");
            check!(here <= best, "level {best} is nearer than {here}");
        } else if let Some(rest) = line.strip_prefix("The best place in an empty cluster") {
            count(judged, "best");
            let (level, own) = between(rest, " reaches ", ", this one ").ok_or("another form")?;
            let rank = |word: &str| match word {
                "nvlink" | "node" => 1,
                "leaf" => 2,
                _ => 3,
            };
            let own = own.split([';', '.']).next().unwrap_or("");
            check!(
                rank(level) == best && rank(own) == here,
                "best {best}, here {here}"
            );
        } else if line.is_empty() || line.starts_with("NODE ") || line.starts_with('n') {
        } else {
            return Err(format!("a line of no form that is known: {line}"));
        }
        judged_line(judged, line);
    }
    Ok(())
}
