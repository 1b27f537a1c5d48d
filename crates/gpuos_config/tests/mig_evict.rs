//! Who would have to go so that several instances fit, against all sets of jobs asked one by one of what decides in
//! slurmctld.

use std::cell::RefCell;

use gpuos_config::options::parse_mig;
use gpuos_model::gpu_index::PoolSet;
use gpuos_model::gpuset::GpuSet;
use gpuos_model::mig::{Geometry, NONE, States};
use gpuos_placement::mig::evict::{Divided, Eviction, NoEviction, Tenant, evict};
use gpuos_placement::mig::{Ask, Effort, Pool, tile};

use crate::mig_support::{board, boards};
use crate::random::Random;

/// A node with its jobs, and what each of them asked for.
struct Node {
    geometry: Geometry,
    states: States,
    gpus: usize,
    tenants: Vec<Tenant>,
    asks: Vec<Ask>,
    /// Without jobs.
    pool: RefCell<Pool>,
}

impl Node {
    fn divided(&self) -> Divided<'_> {
        Divided {
            geometry: &self.geometry,
            states: &self.states,
            gpus: self.gpus,
            out: PoolSet::EMPTY,
        }
    }

    /// Whether slurmctld would find room beside those that stay.
    fn room(&self, stays: impl Fn(usize) -> bool, ask: &Ask) -> bool {
        let mut pool = self.pool.borrow_mut();
        let mut taken = 0;
        for (at, tenant) in self.tenants.iter().enumerate().filter(|one| stays(one.0)) {
            taken |= tenant.bits;
            pool.holds(at as u32, &self.asks[at], [(0, tenant.bits)]);
        }
        pool.see(0, taken, PoolSet::EMPTY);
        let prices = pool.prices();
        let room = pool.pick(&mut Effort::default(), &prices, 0, ask).is_some();
        (0..self.tenants.len()).for_each(|at| pool.ends(at as u32));
        room
    }

    /// The least cost by trying all sets.
    fn least(&self, ask: &Ask) -> Option<u64> {
        let sets = 0u32..1 << self.tenants.len();
        let cost = |set: u32| {
            let gone = (0..self.tenants.len()).filter(|at| set >> at & 1 == 1);
            gone.map(|at| self.tenants[at].cost).sum::<Option<u64>>()
        };
        let mut sets: Vec<(u64, u32)> = sets.filter_map(|set| Some((cost(set)?, set))).collect();
        sets.sort_unstable();
        let mut sets = sets.into_iter();
        let found = sets.find(|(_, set)| self.room(|at| set >> at & 1 == 0, ask));
        found.map(|(cost, _)| cost)
    }
}

fn request(random: &mut Random, geometry: &Geometry, kinds: u64) -> (String, u64) {
    let (mut items, mut slices) = (Vec::new(), 0);
    for _ in 0..1 + random.below(kinds) {
        let profile = &geometry.profiles()[random.index(geometry.profiles().len())];
        let count = 1 + random.below(2);
        slices += count * u64::from(profile.size);
        items.push(format!("{}:{count}", profile.name));
    }
    (items.join(","), slices)
}

/// A node that random jobs have filled, some of them on several GPUs.
fn node(random: &mut Random, geometry: Geometry) -> Node {
    let gpus = (64 / usize::from(geometry.slices())).min(3);
    let mut pool = Pool::new(vec![geometry.clone()]).unwrap();
    let number = pool.add_node(0, gpus).unwrap();
    let states = States::new(&geometry).unwrap();
    let (mut tenants, mut asks, mut taken) = (Vec::new(), Vec::new(), 0);
    for job in 100..140 {
        if tenants.len() == 9 {
            break;
        }
        let (text, slices) = request(random, &geometry, 2);
        let Some(ask) = Ask::of_request(&parse_mig(&text).unwrap(), &pool, slices) else {
            continue;
        };
        let prices = pool.prices();
        let Some(pick) = pool.pick(&mut Effort::default(), &prices, number, &ask) else {
            continue;
        };
        taken |= pick.bits;
        pool.holds(job, &ask, [(number, pick.bits)]);
        pool.see(number, taken, PoolSet::EMPTY);
        let cuts = tile(&geometry, pick.bits, ask.serves(0).unwrap()).unwrap();
        let cuts = cuts.iter().filter(|cut| states.is_scarce(cut.profile));
        let spot = |cut: &gpuos_placement::mig::JobInstance| {
            (
                cut.gpu.index(),
                states.spot(cut.profile, cut.placement.start).unwrap(),
            )
        };
        tenants.push(Tenant {
            bits: pick.bits,
            scarce: cuts.map(spot).collect(),
            cost: (random.below(6) > 0).then(|| random.below(20)),
        });
        asks.push(ask);
    }
    (100..140).for_each(|job| pool.ends(job));
    Node {
        geometry,
        states,
        gpus,
        tenants,
        asks,
        pool: pool.into(),
    }
}

#[test]
fn no_set_of_jobs_makes_room_for_less() {
    let mut random = Random(11);
    let mut compared = [0; 2];
    for (name, geometry) in boards() {
        for round in 0..40 {
            let node = node(&mut random, geometry.clone());
            let (text, slices) = request(&mut random, &geometry, 3);
            let asked = parse_mig(&text).unwrap();
            let Some(ask) = Ask::of_request(&asked, &node.pool.borrow(), slices) else {
                continue;
            };
            let serves = ask.serves(0).unwrap();
            // Room with several kinds of which one is scarce may be refused for another reason.
            if serves.len() > 1 && serves.iter().any(|one| node.states.is_scarce(one.0)) {
                continue;
            }
            let found = evict(node.divided(), &node.tenants, serves);
            let least = node.least(&ask);
            assert_eq!(
                found.as_ref().map(|one| one.cost).ok(),
                least,
                "{name} {round} {text}"
            );
            compared[usize::from(found.is_ok())] += 1;
            if let Ok(Eviction { goes, cost, exact }) = found {
                assert!(
                    exact && node.room(|at| !goes.contains(&at), &ask),
                    "{name} {round} {text}"
                );
                let costs = goes.iter().map(|at| node.tenants[*at].cost.unwrap());
                assert_eq!(costs.sum::<u64>(), cost, "{name} {round} {text}");
            }
        }
    }
    assert!(compared[0] > 4 && compared[1] > 100, "{compared:?}");
}

fn tenant(bits: u64, cost: Option<u64>) -> Tenant {
    Tenant {
        bits,
        scarce: Vec::new(),
        cost,
    }
}

#[test]
fn a_job_goes_as_a_whole_and_the_others_make_up_the_rest() {
    let geometry = board("h100-80gb");
    let states = States::new(&geometry).unwrap();
    let node = Divided {
        geometry: &geometry,
        states: &states,
        gpus: 3,
        out: PoolSet(GpuSet(0b100)),
    };
    let of = |text: &str| parse_mig(text).unwrap().serves(&geometry).unwrap();
    // One on a half of both GPUs, one on the other half of each.
    let tenants = [
        tenant(0x0f_0f, Some(10)),
        tenant(0x00_f0, Some(4)),
        tenant(0xf0_00, Some(5)),
    ];
    let ask = |tenants: &[Tenant], text: &str| evict(node, tenants, &of(text));
    let goes = |text: &str| ask(&tenants, text).map(|one| (one.goes, one.cost));
    assert_eq!(goes("3g.40gb"), Ok((vec![1], 4)));
    assert_eq!(goes("3g.40gb:2"), Ok((vec![1, 2], 9)));
    assert_eq!(goes("3g.40gb:3"), Ok((vec![0, 1], 14)));
    assert_eq!(goes("7g.80gb"), Ok((vec![0, 1], 14)));
    assert_eq!(goes("7g.80gb,3g.40gb:2"), Ok((vec![0, 1, 2], 19)));
    // The third GPU is out of service.
    assert_eq!(goes("7g.80gb:3"), Err(NoEviction::Proved));
    let stays = [
        tenant(0x0f_0f, None),
        tenants[1].clone(),
        tenants[2].clone(),
    ];
    assert_eq!(ask(&stays, "7g.80gb"), Err(NoEviction::Proved));
    // Free room costs nothing.
    assert_eq!(
        ask(&[], "7g.80gb:2").map(|one| (one.goes, one.cost)),
        Ok((vec![], 0))
    );
    assert_ne!(states.of([]), NONE);
}

#[test]
fn many_jobs_on_several_gpus_are_bounded_and_said_so() {
    let geometry = board("h100-80gb");
    let states = States::new(&geometry).unwrap();
    let node = Divided {
        geometry: &geometry,
        states: &states,
        gpus: 8,
        out: PoolSet::EMPTY,
    };
    // Twenty-eight jobs, each with a slice of two GPUs.
    let pairs = (0..4).flat_map(|pair| (0..7).map(move |slice| (pair, slice)));
    let tenants: Vec<Tenant> = pairs
        .map(|(pair, slice)| tenant((1 | 1 << 8) << (16 * pair + slice), Some(1 + slice)))
        .collect();
    let serves = parse_mig("1g.10gb:2").unwrap().serves(&geometry).unwrap();
    let found = evict(node, &tenants, &serves).unwrap();
    assert_eq!((found.cost, found.goes.len(), found.exact), (1, 1, false));
    // Of the ten that are tried not seven are on the same GPU.
    let serves = parse_mig("7g.80gb").unwrap().serves(&geometry).unwrap();
    assert_eq!(evict(node, &tenants, &serves), Err(NoEviction::NotFound));
}
