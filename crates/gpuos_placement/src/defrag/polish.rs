//! Makes a plan cheaper in parts: what is done with one or a few jobs is taken back, and what that
//! leaves undone is searched anew, while the rest stays as it is (large neighbourhood search: Shaw,
//! CP 1998).
use super::Kind;
use super::board::Board;
use super::search::{Best, Dig};

/// Choices that are followed at each step, and steps for each part.
const LOOK: (usize, u32) = (6, 1500);
/// Parts that are tried.
const PARTS: usize = 400;

/// The cheapest plan that is reached so; `least` is what none can cost less than.
pub fn polish(board: &Board<'_>, mut best: Best, least: u64, work: &mut u64) -> Best {
    let mut parts = PARTS;
    'better: while best.cost > least {
        for part in neighbours(board, &best) {
            if parts == 0 || *work == 0 {
                return best;
            }
            parts -= 1;
            let mut dig = Dig::new(board, &best.places.gang, LOOK.0, best.cost, *work);
            dig.keep(&best, &part);
            for fill in [true, false] {
                dig.search_steps(LOOK.1, fill);
            }
            *work = dig.work;
            if let Some(new) = dig.best {
                best = new;
                continue 'better;
            }
        }
        break;
    }
    best
}

/// Jobs whose actions are taken back together: each alone, the dearest first; then each preempted
/// one with those moved, which may have taken its place.
fn neighbours(board: &Board<'_>, best: &Best) -> Vec<Vec<usize>> {
    let problem = board.problem;
    let mut done: Vec<(u64, usize, Kind)> = Vec::new();
    for (job, kind) in best.kinds.iter().enumerate() {
        if let Some(kind) = *kind {
            let cost = problem.cost(&problem.jobs[job], kind).total;
            done.push((cost, job, kind));
        }
    }
    done.sort_by_key(|&(cost, job, _)| (u64::MAX - cost, job));
    let mut all: Vec<Vec<usize>> = done.iter().map(|one| vec![one.1]).collect();
    let moved: Vec<usize> = best.places.moved.iter().map(|one| one.0).collect();
    let preempted = done.iter().filter(|one| one.2 == Kind::Preempt);
    for &(_, job, _) in preempted {
        let with = |other: &usize| near(board, best, job, *other);
        let some: Vec<usize> = moved.iter().copied().filter(with).collect();
        if !some.is_empty() {
            all.push([&[job][..], &some].concat());
        }
        all.push([&[job][..], &moved].concat());
        let pairs = done.iter().filter(|other| other.1 != job);
        all.extend(pairs.map(|other| vec![job, other.1]));
    }
    all
}

/// Whether a moved job comes from a job's nodes, or goes there.
fn near(board: &Board<'_>, best: &Best, job: usize, moved: usize) -> bool {
    let jobs = &board.problem.jobs;
    let to = best.places.moved.iter().find(|one| one.0 == moved);
    let to = to.map_or(&[][..], |one| &one.1);
    let on = |node: u32| jobs[job].shares.iter().any(|share| share.0 == node);
    jobs[moved].shares.iter().chain(to).any(|share| on(share.0))
}
