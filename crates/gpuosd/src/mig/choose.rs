//! Slices for jobs whose workload manager counts them and does not say which they are: they are chosen on the node, by what select_gpuos
//! chooses them by for Slurm.

use gpuos_config::options::parse_mig;
use gpuos_model::gpu_index::{NvmlIndex, NvmlSet, PoolGpu, PoolSet};
use gpuos_model::gpuset::GpuSet;
use gpuos_model::mig::MigPlacement;
use gpuos_placement::mig::{Ask, Effort, Pool as Places};
use gpuos_workload::PoolRoom;
use gpuos_workload::job::{Allocation, Job, Unplaced};

use super::pool::{Grant, Piece, Pool};

/// Bits of GRES `gpuos`, and the instances that they are, as a note has them.
pub type Chosen = (u64, String);

/// What is on the GPUs of the pool beside the slices that are looked for, and where any can be.
#[derive(Clone, Copy, Debug)]
pub struct Beside<'a> {
    /// What other jobs have.
    pub others: &'a [&'a Grant],
    /// Instances of nobody.
    pub nobodys: &'a [(NvmlIndex, MigPlacement)],
    /// GPUs that are in service and show what is on them.
    pub usable: NvmlSet,
}

/// The slices that leave the most useful ones to others: of each GPU of which the job was given some, or as often as it was given some of any GPU, what it
/// asks for.
///
/// # Errors
/// There is no room now, or there never will be: a sentence.
pub fn choose(pool: &Pool, wish: &Unplaced, beside: Beside<'_>) -> Result<Chosen, String> {
    let request = &wish.request;
    let lacks = || {
        let board = &pool.board;
        format!("{request:?} names nothing that a GPU of the kind {board} has")
    };
    let read = parse_mig(request).map_err(|_| lacks())?;
    let serves = read.serves(&pool.geometry).ok_or_else(lacks)?;
    let profiles = pool.geometry.profiles();
    let size = |&(at, count): &(usize, u16)| u64::from(profiles[at].size) * u64::from(count);
    let slices: u64 = serves.iter().map(size).sum();
    let width = |&(at, count): &(usize, u16)| u64::from(profiles[at].compute) * u64::from(count);
    let compute: u64 = serves.iter().map(width).sum();
    let own = wish.gpus.iter().map(|gpu| NvmlSet::EMPTY.with(gpu));
    let each: Vec<NvmlSet> = match wish.gpus.is_empty() {
        false => own.collect(),
        // No more than there are slices.
        true => vec![beside.usable; wish.chunks.min(u64::BITS) as usize],
    };
    if each.is_empty() {
        return Err(format!("the job was given {request} on no GPU"));
    }
    let times = each.len() as u64;
    if slices * times > wish.memory || compute * times > wish.compute {
        let of_each = if times > 1 {
            " of each of its GPUs"
        } else {
            ""
        };
        return Err(format!(
            "{request} takes {slices} memory slices and {compute} compute slices{of_each}, and the job was given {} and {}",
            wish.memory, wish.compute
        ));
    }
    let mut on = Board::of(pool, beside)?;
    let ask = Ask::of_request(&read, &on.places, slices).ok_or_else(lacks)?;
    let mut bits = 0;
    for (number, gpus) in each.into_iter().enumerate() {
        on.see(pool, gpus);
        let prices = on.places.prices();
        let pick = (on.places).pick(&mut Effort::default(), &prices, on.node, &ask);
        let pick = pick.ok_or_else(|| {
            let where_to = match wish.gpus.is_empty() {
                false => format!("GPU {gpus}"),
                true if gpus.is_empty() => "the pool, of which no GPU can be used now,".into(),
                true => format!("GPUs {gpus} of the pool"),
            };
            format!(
                "no placement for {request} is free on {where_to} beside what other jobs have there"
            )
        })?;
        bits |= pick.bits;
        on.taken |= pick.bits;
        let number = beside.others.len() + number;
        on.places.holds(number as u32, &ask, [(on.node, pick.bits)]);
    }
    if times == 1 {
        return Ok((bits, ask.names(&on.places, 0)));
    }
    let name =
        |&(at, count): &(usize, u16)| format!("{}:{}", profiles[at].name, u64::from(count) * times);
    let names: Vec<String> = serves.iter().map(name).collect();
    Ok((bits, names.join(",")))
}

/// What PBS is to count of the pool, and to compare requests with.
///
/// # Errors
/// The pool has more slices than can be counted.
pub fn room(pool: &Pool, beside: Beside<'_>, in_service: NvmlSet) -> Result<PoolRoom, String> {
    let mut on = Board::of(pool, beside)?;
    on.see(pool, beside.usable);
    let profiles = pool.geometry.profiles().iter();
    let fit = profiles.zip(on.places.fits(on.node));
    let fit = fit.filter(|(_, count)| *count > 0);
    let gpus = in_service.len() as u64;
    Ok(PoolRoom {
        fits: fit.map(|(one, _)| u64::from(one.size)).max().unwrap_or(0),
        compute: gpus * u64::from(pool.geometry.compute()),
        memory: gpus * u64::from(pool.geometry.slices()),
    })
}

/// The GPUs of the pool with what is on them.
struct Board {
    places: Places,
    node: u32,
    taken: u64,
}

impl Board {
    fn of(pool: &Pool, beside: Beside<'_>) -> Result<Board, String> {
        let mut places = Places::new(vec![pool.geometry.clone()]).map_err(|why| why.to_string())?;
        let node = places.add_node(0, pool.gpus.len()).ok_or_else(|| {
            let gpus = pool.gpus.len();
            format!("the {gpus} GPUs of the pool have more slices than can be counted")
        })?;
        // What a GPU has few of besides slices.
        for (number, grant) in (0..).zip(beside.others) {
            let names = parse_mig(&pool.names(&grant.pieces)).ok();
            let held = u64::from(grant.bits.count_ones());
            let has = names.and_then(|names| Ask::of_request(&names, &places, held));
            if let Some(has) = has {
                places.holds(number, &has, [(node, grant.bits)]);
            }
        }
        let of_jobs = beside.others.iter().fold(0, |all, grant| all | grant.bits);
        let nobodys = beside.nobodys.iter();
        let taken = nobodys.fold(of_jobs, |all, (gpu, placement)| {
            let piece = Piece {
                gpu: *gpu,
                profile: 0,
                placement: *placement,
            };
            all | pool.bits(&piece)
        });
        Ok(Board {
            places,
            node,
            taken,
        })
    }

    /// Looks at these GPUs alone.
    fn see(&mut self, pool: &Pool, gpus: NvmlSet) {
        let elsewhere = pool.gpus.iter().enumerate();
        let elsewhere = elsewhere.filter(|(_, gpu)| !gpus.contains(**gpu));
        let elsewhere: PoolSet = elsewhere.filter_map(|(at, _)| PoolGpu::new(at)).collect();
        self.places.see(self.node, self.taken, elsewhere);
    }
}

/// The record of a job with these slices.
pub fn with(record: &Job, node: &str, (bits, names): Chosen) -> Job {
    let mut placed = record.clone();
    placed.note = format!("gpuos: mig={names}");
    placed.allocations.push(Allocation {
        nodes: vec![node.into()],
        slices: GpuSet(bits),
        ..Allocation::default()
    });
    placed
}

#[cfg(test)]
mod tests {
    use gpuos_config::gpuos_toml::Config;

    use super::*;

    /// Two GPUs of seven compute and eight memory slices, with one media extension each.
    const CONFIG: &str = "[[mig.board]]\nname = \"h100\"\nprofiles = [\n  \
        { id = 19, name = \"1g.10gb\", compute = 1, memory-mib = 9984, most = 7, size = 1, starts = [0, 1, 2, 3, 4, 5, 6] },\n  \
        { id = 20, name = \"1g.10gb+me\", compute = 1, memory-mib = 9984, most = 1, size = 1, starts = [0, 1, 2, 3, 4, 5, 6] },\n  \
        { id = 9, name = \"3g.40gb\", compute = 3, memory-mib = 40448, most = 2, size = 4, starts = [0, 4] },\n  \
        { id = 0, name = \"7g.80gb\", compute = 7, memory-mib = 81152, most = 1, size = 8, starts = [0] },\n]\n\
        [[mig.pool]]\nnodes = \"n1\"\ngpus = \"2-3\"\nboard = \"h100\"\n";

    fn pool() -> Pool {
        let config = Config::parse(CONFIG, "gpuos.toml").unwrap();
        Pool::of(&config.mig, "n1").unwrap()
    }

    fn wish(request: &str, gpu: usize) -> Unplaced {
        Unplaced {
            request: request.into(),
            gpus: NvmlSet::EMPTY.with(NvmlIndex::new(gpu).unwrap()),
            compute: 7,
            memory: 8,
            chunks: 0,
        }
    }

    fn both() -> NvmlSet {
        [2, 3].into_iter().filter_map(NvmlIndex::new).collect()
    }

    fn beside<'a>(others: &'a [&'a Grant], nobodys: &'a [(NvmlIndex, MigPlacement)]) -> Beside<'a> {
        Beside {
            others,
            nobodys,
            usable: both(),
        }
    }

    /// On any GPU, so often.
    fn anywhere(request: &str, chunks: u32) -> Unplaced {
        Unplaced {
            request: request.into(),
            chunks,
            compute: 14,
            memory: 16,
            ..Unplaced::default()
        }
    }

    /// Chooses, and grants what was chosen, as for a job's record.
    fn grant(pool: &Pool, wish: &Unplaced, others: &[Grant]) -> Result<Grant, String> {
        let others: Vec<&Grant> = others.iter().collect();
        let chosen = choose(pool, wish, beside(&others, &[]))?;
        let record = with(&Job::default(), "n1", chosen);
        let pieces: Vec<Piece> = others.iter().flat_map(|one| one.pieces.clone()).collect();
        pool.grant("n1", &record, (None, &pieces))
    }

    #[test]
    fn seven_small_ones_are_on_one_gpu_and_no_eighth() {
        let pool = pool();
        let mut all = Vec::new();
        for _ in 0..7 {
            let next = grant(&pool, &wish("10G", 3), &all).unwrap();
            assert!(all.iter().all(|one: &Grant| one.bits & next.bits == 0));
            assert_eq!((next.bits & 0xff, next.bits.count_ones()), (0, 1));
            all.push(next);
        }
        let why = grant(&pool, &wish("1g.10gb", 3), &all).unwrap_err();
        assert!(why.contains("1g.10gb is free on GPU 3"), "{why}");
        assert!(grant(&pool, &wish("1g.10gb", 2), &all).is_ok());
    }

    #[test]
    fn a_small_one_leaves_room_for_large_ones() {
        let pool = pool();
        let large = grant(&pool, &wish("3g.40gb", 2), &[]).unwrap();
        let small = grant(&pool, &wish("1g.10gb", 2), std::slice::from_ref(&large)).unwrap();
        assert_eq!(large.bits & small.bits, 0);
        let two = [large, small];
        assert!(grant(&pool, &wish("3g.40gb", 2), &two).is_err());
        // On the other one a third has room: a GPU that the job was not given is not looked at.
        assert_eq!(
            grant(&pool, &wish("7g.80gb", 3), &two).unwrap().bits,
            0xff00
        );
    }

    #[test]
    fn of_two_gpus_each_has_what_is_asked_for() {
        let pool = pool();
        let both = |request: &str, compute, memory| Unplaced {
            gpus: NvmlSet::EMPTY
                .with(NvmlIndex::new(2).unwrap())
                .with(NvmlIndex::new(3).unwrap()),
            compute,
            memory,
            ..wish(request, 2)
        };
        let large = grant(&pool, &wish("3g.40gb", 2), &[]).unwrap();
        let others = std::slice::from_ref(&large);
        let found = grant(&pool, &both("1g.10gb:2", 4, 4), others).unwrap();
        assert_eq!(found.bits & large.bits, 0);
        let on = |bits: u64| (bits & found.bits).count_ones();
        assert_eq!((on(0xff), on(0xff00), found.pieces.len()), (2, 2, 4));
        assert_eq!(pool.names(&found.pieces), "1g.10gb,1g.10gb,1g.10gb,1g.10gb");
        // The one has no room for it, or too little was counted for both.
        let why = grant(&pool, &both("7g.80gb", 14, 16), others).unwrap_err();
        assert!(why.contains("7g.80gb is free on GPU 2"), "{why}");
        let why = grant(&pool, &both("1g.10gb:2", 4, 3), &[]).unwrap_err();
        assert!(why.contains("of each of its GPUs"), "{why}");
    }

    #[test]
    fn what_a_gpu_has_one_of_is_given_once() {
        let pool = pool();
        let first = grant(&pool, &wish("1g.10gb+me", 2), &[]).unwrap();
        let why = grant(&pool, &wish("1g.10gb+me", 2), std::slice::from_ref(&first));
        assert!(why.is_err(), "{why:?}");
        let plain = grant(&pool, &wish("1g.10gb:2", 2), &[first]).unwrap();
        assert_eq!(pool.names(&plain.pieces), "1g.10gb,1g.10gb");
    }

    #[test]
    fn nobody_has_more_than_was_counted() {
        let pool = pool();
        let given = |compute, memory| {
            let wish = Unplaced {
                compute,
                memory,
                ..wish("3g.40gb", 2)
            };
            choose(&pool, &wish, beside(&[], &[]))
        };
        assert!(given(3, 4).is_ok());
        for (compute, memory) in [(3, 3), (2, 4), (0, 0)] {
            let why = given(compute, memory).unwrap_err();
            assert!(
                why.contains("takes 4 memory slices and 3 compute slices"),
                "{why}"
            );
        }
    }

    #[test]
    fn where_an_instance_of_nobody_is_nothing_is_placed() {
        let pool = pool();
        let place = |start| (NvmlIndex::new(2).unwrap(), MigPlacement { start, size: 1 });
        let left = [place(0), place(4)];
        let why = choose(&pool, &wish("3g.40gb", 2), beside(&[], &left)).unwrap_err();
        assert!(why.contains("3g.40gb"), "{why}");
        let (bits, names) = choose(&pool, &wish("3g.40gb", 2), beside(&[], &left[1..])).unwrap();
        assert_eq!((bits, &names[..]), (0xf, "3g.40gb:1"));
        for nonsense in ["9g.90gb", "", "x"] {
            let why = choose(&pool, &wish(nonsense, 2), beside(&[], &[])).unwrap_err();
            assert!(why.contains("h100"), "{why}");
        }
    }

    #[test]
    fn where_any_gpu_will_do_the_one_is_taken_that_leaves_most() {
        let pool = pool();
        let small = grant(&pool, &wish("1g.10gb", 3), &[]).unwrap();
        // Beside the small one on GPU 3, and GPU 2 stays whole.
        let next = grant(&pool, &anywhere("3g.40gb", 1), std::slice::from_ref(&small)).unwrap();
        assert_eq!((next.bits & 0xff, next.bits & small.bits), (0, 0));
        let all = [small, next];
        let whole = grant(&pool, &anywhere("7g.80gb", 1), &all).unwrap();
        assert_eq!(whole.bits, 0xff);
        let why = grant(&pool, &anywhere("7g.80gb", 1), &all[..1]).map(|one| one.bits);
        assert_eq!(why, Ok(0xff));
        let why = grant(&pool, &anywhere("7g.80gb", 2), &all).unwrap_err();
        assert!(why.contains("GPUs 2-3 of the pool"), "{why}");
        // No one is on a GPU that is out of service.
        let one = |usable| {
            let beside = Beside {
                usable,
                ..beside(&[], &[])
            };
            choose(&pool, &anywhere("7g.80gb", 1), beside)
        };
        let third = NvmlSet::EMPTY.with(NvmlIndex::new(3).unwrap());
        assert_eq!(one(third).unwrap().0, 0xff00);
        assert!(
            one(NvmlSet::EMPTY)
                .unwrap_err()
                .contains("no GPU can be used")
        );
    }

    #[test]
    fn two_chunks_may_share_a_gpu_and_have_what_each_asks_for() {
        let pool = pool();
        let found = grant(&pool, &anywhere("3g.40gb", 2), &[]).unwrap();
        assert!([0xff, 0xff00].contains(&found.bits), "{:x}", found.bits);
        assert_eq!(pool.names(&found.pieces), "3g.40gb,3g.40gb");
        // Of what a GPU has one of, each GPU has one.
        let found = grant(&pool, &anywhere("1g.10gb+me", 2), &[]).unwrap();
        let on = |bits: u64| (bits & found.bits).count_ones();
        assert_eq!((on(0xff), on(0xff00)), (1, 1));
        assert!(grant(&pool, &anywhere("1g.10gb+me", 3), &[]).is_err());
        let why = grant(&pool, &anywhere("1g.10gb", 0), &[]).unwrap_err();
        assert!(why.contains("on no GPU"), "{why}");
        let more = grant(&pool, &anywhere("7g.80gb", u32::MAX), &[]).unwrap_err();
        assert!(more.contains("was given 16 and 14"), "{more}");
    }

    #[test]
    fn the_room_of_a_pool_is_what_fits_on_one_gpu_and_what_all_have() {
        let pool = pool();
        let room = |others: &[&Grant], usable: NvmlSet, in_service: NvmlSet| {
            let beside = Beside {
                usable,
                ..beside(others, &[])
            };
            let room = room(&pool, beside, in_service).unwrap();
            (room.fits, room.compute, room.memory)
        };
        let third = NvmlSet::EMPTY.with(NvmlIndex::new(3).unwrap());
        assert_eq!(room(&[], both(), both()), (8, 14, 16));
        let small = grant(&pool, &wish("1g.10gb", 3), &[]).unwrap();
        assert_eq!(room(&[&small], both(), both()), (8, 14, 16));
        assert_eq!(room(&[&small], third, third), (4, 7, 8));
        assert_eq!(room(&[], NvmlSet::EMPTY, third), (0, 7, 8));
    }
}
