//! Slices of GPUs: what a job asks for becomes counts in its chunk, which pbs_sched gives of one vnode.

use std::collections::BTreeMap;

use gpuos_model::mig::Geometry;
use gpuos_placement::mig::{Ask, Effort, MigRequest, Pool, Serves};

use super::options::named;
use super::place::Place;
use super::refused;
use super::resources::{MIG, MIG_BOARD, MIG_COMPUTE, MIG_GPU, MIG_MEMORY};
use super::select::{Chunk, Select};

/// What is written into a chunk, and out of it again.
const COUNTED: [&str; 3] = [MIG_COMPUTE, MIG_MEMORY, MIG_BOARD];

/// The chunks of a job without what was counted in them before.
pub(super) fn uncounted(select: &Select) -> Select {
    let own = |name: &str| COUNTED.iter().any(|one| one.eq_ignore_ascii_case(name));
    let without = |chunk: &Chunk| Chunk {
        count: chunk.count,
        wants: chunk
            .wants
            .iter()
            .filter(|(name, _)| !own(name))
            .cloned()
            .collect(),
    };
    Select(select.0.iter().map(without).collect())
}

/// The chunk of a job with slices, in which they are counted.
///
/// # Errors
/// The rest of the request rules them out, or no GPU has them: the sentence.
pub(super) fn counted(
    request: &MigRequest,
    select: Option<&Select>,
    (place, given): (&Place, &str),
    boards: &BTreeMap<String, Geometry>,
) -> Result<Select, String> {
    let option = || named(MIG);
    let group = place.group.as_deref();
    if request.per_task {
        return Err(refused::per_task(request, option()).to_string());
    }
    if group.is_some_and(|group| group != MIG_GPU) {
        return Err(refused::one_gpu(request, option(), given).to_string());
    }
    let Some(select) = select else {
        return Err(refused::no_chunk(request, option()).to_string());
    };
    let chunks = select.0.iter();
    let chunks: u64 = chunks.map(|one| u64::from(one.count.unwrap_or(1))).sum();
    let [chunk] = &select.0[..] else {
        return Err(refused::several_chunks(request, option(), chunks).to_string());
    };
    if chunks > 1 {
        return Err(refused::several_chunks(request, option(), chunks).to_string());
    }
    let (board, compute, memory) = best(request, boards)?;
    let mut chunk = chunk.clone();
    let counts = [
        (MIG_COMPUTE, compute.to_string()),
        (MIG_MEMORY, memory.to_string()),
        (MIG_BOARD, board.to_owned()),
    ];
    let counts = counts.map(|(name, value)| (name.to_owned(), value));
    chunk.wants.extend(counts);
    Ok(Select(vec![chunk]))
}

/// The kind of GPU of which the request takes the smallest part, with the compute and memory slices that it takes.
fn best<'a>(
    request: &MigRequest,
    boards: &'a BTreeMap<String, Geometry>,
) -> Result<(&'a str, u64, u64), String> {
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
            Some((part, (&name[..], compute, memory)))
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
