//! GPUs, CPUs and memory that are kept for the job that is next, as a reservation of PBS's, by which pbs_sched goes too.
//!
//! It begins when the job can start first, by the time limits of running jobs. So pbs_sched starts nobody there who would run longer, and
//! whoever ends before then is welcome. Nothing ever runs in it: it is moved on before it would begin, and is deleted once the job runs.
//! All that is known of it is what PBS says, so a planner that was started anew finds it; one that is gone leaves it with an end.

use std::collections::{BTreeMap, BTreeSet};

use super::{Keeps, Part};
use crate::hook::resources::NGPUS;
use crate::hook::select::{Chunk, Select};
use crate::hook::vnodes::is_vnode;
use crate::state::Site;

/// How long a reservation lasts, in seconds: it has to begin before those end who are to be kept away, and that is all.
const LASTS: i64 = 300;

/// Seconds before its beginning at which one is moved on: more than a pass takes, all of PBS's slow answers counted.
const AHEAD: i64 = 180;

/// By how many seconds the moment may come nearer before a reservation follows it.
const SLACK: i64 = 120;

/// In how many seconds a job has to be able to start for a reservation to be made: so long at most one stays after the planner is gone.
const FARTHEST: i64 = 86_400;

/// What names begin with; the number of the job follows.
const NAME: &str = "gpuos_";

/// Whose they are.
const OWNER: &str = "root@";

/// A reservation of the planner's.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Reservation {
    /// PBS's name of it, such as `R12.head`.
    pub id: String,
    /// The number of the job for which it keeps vnodes.
    pub job: String,
    /// How many GPUs of which vnodes.
    pub gpus: BTreeMap<String, u64>,
    /// When it begins, in seconds since 1970.
    pub begins: i64,
}

/// What is to be done about reservations. Times are seconds since 1970.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Act {
    /// A new one.
    Make {
        /// Its name.
        name: String,
        /// Its chunks, a vnode each.
        select: String,
        /// When it begins.
        begins: i64,
        /// When it ends.
        ends: i64,
    },
    /// It begins at another time.
    Move {
        /// PBS's name of it.
        id: String,
        /// When it begins.
        begins: i64,
        /// When it ends.
        ends: i64,
    },
    /// It is not needed any more.
    Delete {
        /// PBS's name of it.
        id: String,
    },
}

/// The planner's reservations in what `pbs_rstat -f` prints with times in UTC. One that is listed twice, or cannot be read, is none of
/// them: users have reservations too, and write texts into theirs.
pub fn own(text: &str) -> Vec<Reservation> {
    let blocks = text.split("Resv ID: ").skip(1);
    let blocks: Vec<(&str, &str)> = blocks
        .map(|block| block.split_once('\n').unwrap_or((block, "")))
        .map(|(id, rest)| (id.trim(), rest))
        .collect();
    let once = |id: &str| blocks.iter().filter(|(other, _)| *other == id).count() == 1;
    let read = blocks.iter().filter(|(id, _)| once(id));
    read.filter_map(|(id, rest)| reservation(id, rest))
        .collect()
}

fn reservation(id: &str, rest: &str) -> Option<Reservation> {
    let value = |key: &str| {
        let mut all = rest.lines().filter_map(|line| {
            let (known, value) = line.split_once(" = ")?;
            (known.trim() == key).then_some(value.trim())
        });
        // None of a key that is there twice.
        all.next().filter(|_| all.next().is_none())
    };
    let number = id.strip_prefix('R')?;
    let digits = number.split('.').next()?;
    let plain = |b: u8| b.is_ascii_alphanumeric() || b"._-".contains(&b);
    let is_id = is_number(digits) && number.bytes().all(plain);
    let job = value("Reserve_Name")?.strip_prefix(NAME)?;
    let is_ours = value("Reserve_Owner")?.starts_with(OWNER) && is_number(job) && is_id;
    let select = Select::parse(value("Resource_List.select")?).ok()?;
    Some(Reservation {
        id: id.to_owned(),
        job: job.to_owned(),
        gpus: gpus(&select),
        begins: moment(value("reserve_start")?)?,
    })
    .filter(|_| is_ours)
}

/// How many GPUs a select has of which vnodes.
fn gpus(select: &Select) -> BTreeMap<String, u64> {
    let of = |chunk: &Chunk| {
        let count = chunk.values(NGPUS).next()?.parse().ok()?;
        Some((chunk.values("vnode").next()?.to_owned(), count))
    };
    select.0.iter().filter_map(of).collect()
}

fn is_number(text: &str) -> bool {
    !text.is_empty() && text.len() < 20 && text.bytes().all(|b| b.is_ascii_digit())
}

/// Seconds since 1970 of `Fri Nov 27 12:09:31 2026`, in UTC. The calendar is Howard Hinnant's `days_from_civil`,
/// <https://howardhinnant.github.io/date_algorithms.html>.
fn moment(text: &str) -> Option<i64> {
    const MONTHS: &str = "JanFebMarAprMayJunJulAugSepOctNovDec";
    let words: Vec<&str> = text.split_whitespace().collect();
    let [_, month, day, time, year] = words[..] else {
        return None;
    };
    let month = match month.len() {
        3 => MONTHS.find(month).filter(|at| at % 3 == 0)? / 3 + 1,
        _ => return None,
    };
    let month = i64::try_from(month).ok()?;
    let (day, year): (i64, i64) = (day.parse().ok()?, year.parse().ok()?);
    if !(1970..10_000).contains(&year) || !(1..32).contains(&day) {
        return None;
    }
    let time = crate::units::seconds(time)?;
    let year = year - i64::from(month <= 2);
    let (era, of_era) = (year / 400, year % 400);
    let from_march = (month + 9) % 12;
    let of_year = (153 * from_march + 2) / 5 + day - 1;
    let days = era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468;
    Some(days * 86_400 + time)
}

/// Seconds since 1970 as `pbs_rsub -R` takes them in UTC: `202611271209.31`.
pub fn written(utc: &str) -> String {
    let digits: String = utc.chars().filter(char::is_ascii_digit).collect();
    let (minutes, seconds) = digits.split_at(digits.len().min(12));
    format!("{minutes}.{seconds}")
}

/// What is to be done so that PBS keeps what a plan keeps. `busy` are whole names of jobs that the plan starts and that do not run yet: their
/// reservations stay as they are.
pub fn step(
    known: &[Reservation],
    keeps: &[Keeps],
    busy: &BTreeSet<String>,
    site: &Site,
    now: i64,
) -> Vec<Act> {
    let number = |job: &str| job.split('.').next().unwrap_or(job).to_owned();
    let busy: BTreeSet<String> = busy.iter().map(|job| number(job)).collect();
    let mut wanted: Vec<(String, Select, i64)> = keeps
        .iter()
        .filter(|keeps| keeps.starts_in <= FARTHEST)
        .map(|keeps| {
            let begins = now + keeps.starts_in.max(2 * AHEAD);
            (number(&keeps.job), select(keeps, site), begins)
        })
        .filter(|(job, select, _)| is_number(job) && !select.0.is_empty())
        .collect();
    let mut acts = Vec::new();
    for one in known {
        let same = |(job, select, _): &_| *job == one.job && gpus(select) == one.gpus;
        let found = wanted.iter().position(same);
        let is_soon = one.begins - now < AHEAD;
        match found.map(|at| wanted.remove(at)) {
            // One that has begun is nobody's to be moved.
            _ if one.begins <= now => acts.push(Act::Delete { id: one.id.clone() }),
            Some((_, _, begins)) if is_soon || begins < one.begins - SLACK => {
                acts.push(Act::Move {
                    id: one.id.clone(),
                    begins,
                    ends: begins + LASTS,
                });
            }
            Some(_) => {}
            None if busy.contains(&one.job) => {}
            None => acts.push(Act::Delete { id: one.id.clone() }),
        }
    }
    for (job, select, begins) in wanted {
        acts.push(Act::Make {
            name: format!("{NAME}{job}"),
            select: select.to_string(),
            begins,
            ends: begins + LASTS,
        });
    }
    acts
}

/// What is kept, a chunk for each vnode that pbs_sched can reserve: not one that is down or out of service.
fn select(keeps: &Keeps, site: &Site) -> Select {
    let chunk = |part: &Part| {
        let vnode = site.nodes.vnodes.get(part.vnode)?;
        let [gpus, cpus, memory_kib] = part.counts;
        let wants = [
            (NGPUS, gpus.to_string()),
            ("ncpus", cpus.to_string()),
            ("mem", format!("{memory_kib}kb")),
            ("vnode", vnode.name.clone()),
        ];
        let wants = wants
            .into_iter()
            .filter(|(_, value)| !matches!(&value[..], "0" | "0kb"));
        let chunk = Chunk {
            count: Some(1),
            wants: wants
                .map(|(name, value)| (name.to_owned(), value))
                .collect(),
        };
        (vnode.up && is_vnode(&vnode.name)).then_some(chunk)
    };
    Select(keeps.parts.iter().filter_map(chunk).collect())
}

#[cfg(test)]
mod tests {
    use gpuos_config::gpuos_toml::Config;

    use super::*;
    use crate::state::Texts;

    /// As OpenPBS 23.06.06 prints it with `TZ=UTC0`.
    const ONE: &str = "Resv ID: R7.head\nReserve_Name = gpuos_12\nReserve_Owner = root@head\nreserve_state = RESV_CONFIRMED\n\
        reserve_substate = 2\nreserve_start = Fri Nov 27 12:09:31 2026\nreserve_end = Fri Nov 27 12:14:31 2026\nreserve_duration = 300\n\
        queue = R7\nResource_List.select = 1:ngpus=4:ncpus=8:vnode=n1+1:ngpus=4:ncpus=8:vnode=n2\nResource_List.place = free\n\
        resv_nodes = (n1:ngpus=4:ncpus=8)+(n2:ngpus=4:ncpus=8)\nAuthorized_Users = root@head\n\n";

    const BEGINS: i64 = 1_795_781_371;

    fn site() -> Site {
        let vnode = |name: &str, more: &str| {
            format!(
                r#""{name}":{{"state":"free"{more},"resources_available":{{"ngpus":8,"ncpus":16,"host":"{name}"}},"resources_assigned":{{"ngpus":6}}}}"#
            )
        };
        let vnodes = format!(
            r#"{{"nodes":{{{},{},{}}}}}"#,
            vnode("n1", r#","resv":"R7.head""#),
            vnode("n2", r#","resv":"R7.head, R8.head""#),
            vnode("n3", "").replace("free", "offline"),
        );
        let texts = Texts {
            vnodes: &vnodes,
            jobs: "{}",
            queues: r#"{"Queue":{}}"#,
            server: r#"{"Server":{"head":{"scheduling":"True"}}}"#,
        };
        Site::read(&texts, Config::default()).unwrap()
    }

    fn keeps(starts_in: i64) -> Vec<Keeps> {
        let part = |vnode| Part {
            vnode,
            counts: [4, 8, 0],
        };
        vec![Keeps {
            job: "12.head".into(),
            starts_in,
            vnodes: ["n1", "n2", "n3"].map(String::from).to_vec(),
            parts: (0..3).map(part).collect(),
        }]
    }

    /// What is to be done at a moment, where vnodes are up but for one that is offline.
    fn acts(known: &[Reservation], keeps: &[Keeps], now: i64) -> Vec<Act> {
        let mut site = site();
        site.nodes.forgive(&["R7.head", "R8.head"]);
        step(known, keeps, &BTreeSet::new(), &site, now)
    }

    #[test]
    fn only_the_planners_own_are_read() {
        let all = own(ONE);
        assert_eq!(all.len(), 1, "{all:?}");
        assert_eq!((&all[0].id[..], &all[0].job[..]), ("R7.head", "12"));
        assert_eq!(all[0].begins, BEGINS);
        let of = |name: &str| (name.to_owned(), 4);
        assert_eq!(all[0].gpus, BTreeMap::from([of("n1"), of("n2")]));
        for (text, other) in [
            ("root@head", "user1@head"),
            ("gpuos_12", "mine"),
            ("gpuos_12", "gpuos_12x"),
            ("R7.head\n", "S7.head\n"),
            ("R7.head\n", "R7.head --help\n"),
            ("Fri Nov 27", "Fri Nop 27"),
            ("queue = R7\n", "queue = R7\nReserve_Owner = root@head\n"),
        ] {
            assert_eq!(own(&ONE.replacen(text, other, 1)), [], "{other}");
        }
        // Whatever a user may have written into the answer, nothing is done to what stands in it twice.
        assert_eq!(own(&format!("{ONE}{ONE}")), []);
        assert_eq!(own(""), []);
    }

    #[test]
    fn vnodes_of_the_planners_reservations_alone_are_free_for_it() {
        let mut site = site();
        let up = |site: &Site| -> Vec<bool> { site.nodes.vnodes.iter().map(|v| v.up).collect() };
        assert_eq!(up(&site), [false, false, false]);
        site.nodes.forgive(&["R7.head"]);
        assert_eq!(up(&site), [true, false, false]);
        site.nodes.forgive(&["R7.head", "R8.head"]);
        assert_eq!(up(&site), [true, true, false]);
    }

    #[test]
    fn a_reservation_follows_the_plan_and_never_begins() {
        let known = own(ONE);
        let delete = Act::Delete {
            id: "R7.head".into(),
        };
        let moved = |begins| Act::Move {
            id: "R7.head".into(),
            begins,
            ends: begins + LASTS,
        };
        let now = BEGINS - 3600;
        assert_eq!(acts(&known, &keeps(3600), now), []);
        assert_eq!(acts(&known, &keeps(3500), now), []);
        // With fewer GPUs of the same hosts it is another one.
        let mut fewer = keeps(3600);
        fewer[0].parts[1].counts[0] = 2;
        let other = acts(&known, &fewer, now);
        assert!(
            matches!(&other[..], [Act::Delete { .. }, Act::Make { .. }]),
            "{other:?}"
        );
        assert_eq!(acts(&known, &keeps(1800), now), [moved(now + 1800)]);
        // Later than it was thought: nobody is harmed until it would begin.
        assert_eq!(acts(&known, &keeps(9000), now), []);
        let now = BEGINS - 100;
        assert_eq!(acts(&known, &keeps(9000), now), [moved(now + 9000)]);
        assert_eq!(acts(&known, &keeps(1), now), [moved(now + 2 * AHEAD)]);
        assert_eq!(acts(&known, &[], now), std::slice::from_ref(&delete));
        assert_eq!(
            acts(&known, &keeps(FARTHEST + 1), now),
            std::slice::from_ref(&delete)
        );
        // It has begun: the planner was away.
        assert_eq!(acts(&known, &keeps(60), BEGINS), [delete]);
        // The job is about to start.
        let busy = BTreeSet::from(["12.head".to_owned()]);
        assert_eq!(step(&known, &[], &busy, &site(), now), []);
    }

    #[test]
    fn what_is_made_has_the_vnodes_that_work_and_an_end() {
        let made = acts(&[], &keeps(1000), BEGINS);
        let select = "1:ngpus=4:ncpus=8:vnode=n1+1:ngpus=4:ncpus=8:vnode=n2";
        assert_eq!(
            made,
            [Act::Make {
                name: "gpuos_12".into(),
                select: select.into(),
                begins: BEGINS + 1000,
                ends: BEGINS + 1000 + LASTS,
            }]
        );
        assert_eq!(acts(&[], &keeps(FARTHEST + 1), BEGINS), []);
        let odd = Keeps {
            job: "12;x".into(),
            ..keeps(60)[0].clone()
        };
        assert_eq!(acts(&[], &[odd], BEGINS), []);
    }

    #[test]
    fn times_as_pbs_takes_them() {
        assert_eq!(written("2026-11-27T12:09:31Z"), "202611271209.31");
        assert_eq!(moment("Thu Jan  1 00:00:00 1970"), Some(0));
        assert_eq!(moment("Tue Feb 29 23:59:59 2028"), Some(1_835_481_599));
        for text in [
            "",
            "now",
            "Fri Nov 27 2026",
            "Fri Nov 0 12:09:31 2026",
            "Fri ebM 27 12:09:31 2026",
        ] {
            assert_eq!(moment(text), None, "{text}");
        }
    }
}
