//! Slices of GPUs: what a job asks for becomes counts in its chunks, which pbs_sched gives of one host each, and gpuosd there of one GPU.

use std::collections::BTreeMap;

use gpuos_model::mig::Geometry;
use gpuos_placement::mig::{Ask, Effort, MigRequest, Pool, Serves};

use super::options::named;
use super::refused;
use super::resources::{MIG, MIG_BOARD, MIG_COMPUTE, MIG_FITS, MIG_MEMORY};
use super::select::{Chunk, Select};
use super::vnodes::Given;

/// What is written into a chunk, and out of it again.
const COUNTED: [&str; 4] = [MIG_COMPUTE, MIG_MEMORY, MIG_FITS, MIG_BOARD];

/// The chunks of a job without what was counted in them before.
pub(super) fn uncounted(select: &Select) -> Select {
    let mut select = select.clone();
    select
        .0
        .iter_mut()
        .for_each(|chunk| chunk.take_out(&COUNTED));
    select
}

/// Whether a release before this one has counted slices in the chunks of a job: it held them together by vnodes.
pub(super) fn are_former(select: &Select) -> bool {
    let has = |name| select.values(name).next().is_some();
    has(MIG_MEMORY) && !has(MIG_FITS)
}

/// How many chunks a job has.
pub(super) fn chunks(select: &Select) -> u64 {
    let chunks = select.0.iter();
    chunks.map(|one| u64::from(one.count.unwrap_or(1))).sum()
}

/// The chunks of a job with slices, in which they are counted. Slices of a chunk are on one GPU.
///
/// # Errors
/// The rest of the request rules them out, or no GPU has them: the sentence.
pub(super) fn counted(
    request: &MigRequest,
    select: Option<&Select>,
    boards: &BTreeMap<String, Geometry>,
) -> Result<Select, String> {
    let option = || named(MIG);
    if request.per_task {
        return Err(refused::per_task(request, option()).to_string());
    }
    let Some(select) = select else {
        return Err(refused::no_chunk(request, option()).to_string());
    };
    let chunks = chunks(select);
    let best = best(request, boards)?;
    if chunks > 1 && request.items.len() > 1 {
        // Which instances are beside each other on a GPU is not counted, but how many there are.
        return Err(refused::one_profile(request, option(), chunks).to_string());
    }
    let Counts {
        board,
        compute,
        memory,
    } = best;
    let counts = [
        (MIG_COMPUTE, compute.to_string()),
        (MIG_MEMORY, memory.to_string()),
        (MIG_BOARD, board.to_owned()),
    ];
    let counts = counts.map(|(name, value)| (name.to_owned(), value));
    let with = |chunk: &Chunk| {
        let mut chunk = chunk.clone();
        chunk.wants.extend(counts.clone());
        chunk
    };
    Ok(Select(select.0.iter().map(with).collect()))
}

/// The chunks of a job with slices with the largest of them, for which a GPU of the host is to have room; `None`: none are counted in them.
pub(super) fn with_fits(
    request: &MigRequest,
    select: &Select,
    boards: &BTreeMap<String, Geometry>,
) -> Option<Select> {
    let with = |chunk: &Chunk| {
        let mut chunk = chunk.clone();
        let board = boards.get(chunk.values(MIG_BOARD).next()?)?;
        let serves = request.resolve(&[(board, 1)], 1).ok()?;
        let sizes = serves.first()?.as_ref()?.iter();
        let sizes = sizes.filter_map(|(at, _)| Some(board.profiles().get(*at)?.size));
        let largest = sizes.max()?.to_string();
        chunk.take_out(&[MIG_FITS]);
        chunk.wants.push((MIG_FITS.into(), largest));
        Some(chunk)
    };
    let chunks: Option<Vec<Chunk>> = select.0.iter().map(with).collect();
    chunks.map(Select)
}

/// Whether each chunk of a job was given slices.
pub(super) fn all_counted(given: &[Vec<Given>]) -> bool {
    let has = |chunk: &Vec<Given>| chunk.iter().any(|one| one.count(MIG_MEMORY) > 0);
    !given.is_empty() && given.iter().all(has)
}

/// What PBS counts of a request on one GPU.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Counts<'a> {
    board: &'a str,
    compute: u64,
    memory: u64,
}

/// The kind of GPU of which the request takes the smallest part, with the compute and memory slices that it takes.
fn best<'a>(
    request: &MigRequest,
    boards: &'a BTreeMap<String, Geometry>,
) -> Result<Counts<'a>, String> {
    let kinds: Vec<(&Geometry, u32)> = boards.values().map(|one| (one, 1)).collect();
    let refuse = |reason: &str, accepted: &str| {
        let accepted = accepted.replace("--gpuos-mig", &named(MIG));
        let reason = reason.replace("no node has", "no GPU has");
        refused::not_served(request, named(MIG), reason, accepted).to_string()
    };
    let each = request.resolve(&kinds, 1);
    let each = each.map_err(|why| refuse(&why.reason, &why.accepted))?;
    let fits = boards
        .iter()
        .zip(&each)
        .filter_map(|((name, geometry), serves)| {
            let serves = serves
                .as_ref()
                .filter(|serves| has_room(request, geometry, serves))?;
            let (compute, memory) = counts(geometry, serves);
            // Parts of GPUs with different numbers of slices.
            let part = memory * 1000 / u64::from(geometry.slices().max(1));
            let counts = Counts {
                board: name,
                compute,
                memory,
            };
            Some((part, counts))
        });
    let least = fits.min();
    least
        .map(|(_, found)| found)
        .ok_or_else(|| refuse("no GPU has so many at once", "fewer"))
}

fn counts(geometry: &Geometry, serves: &Serves) -> (u64, u64) {
    serves
        .iter()
        .fold((0, 0), |(compute, memory), (at, count)| {
            let count = u64::from(*count);
            let Some(profile) = geometry.profiles().get(*at) else {
                return (compute, memory);
            };
            (
                compute + u64::from(profile.compute) * count,
                memory + u64::from(profile.size) * count,
            )
        })
}

/// Whether a GPU on which nothing is has placements for all of it.
fn has_room(request: &MigRequest, geometry: &Geometry, serves: &Serves) -> bool {
    let (compute, memory) = counts(geometry, serves);
    let idle = || {
        let mut pool = Pool::new(vec![geometry.clone()]).ok()?;
        let node = pool.add_node(0, 1)?;
        let ask = Ask::of_request(request, &pool, memory)?;
        let prices = pool.prices();
        pool.pick(&mut Effort::default(), &prices, node, &ask)
    };
    compute <= u64::from(geometry.compute()) && idle().is_some()
}
