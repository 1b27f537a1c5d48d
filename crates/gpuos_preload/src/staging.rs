//! Moving what a kernel needs before it begins: the thread that launches it waits for that, where the program does what it did before
//! (`gpuos_memory::staging`). All work that was given is waited for, by the mover's thread and not by the program's: that one goes on after a
//! while whatever happens, for what it waits for may wait for it.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use gpuos_memory::policy::NAMES;
use gpuos_memory::table::Tier;
use gpuos_memory::trace::Extent;

use crate::figures;
use crate::memory::{self, Held, Memory};
use crate::plan::Plan;
use crate::process::{self, BLOCK};
use crate::{budget, gate, heat};

/// Bytes of what one argument of a kernel is taken to lead to, ...
pub(crate) const REACH: u64 = 512 << 20;
/// ... and that come at once, ...
const MOST: u64 = 512 << 20;
/// ... of this part of the GPU's memory: what comes early takes the place of something for longer.
const PART: u64 = 16;
/// How long a program waits for what it needs.
const PATIENCE: Duration = Duration::from_secs(1);
/// How long it does not wait any more after it has waited in vain, at first and at most; each time in a row twice as long.
const REST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);
/// How long the memory is waited for while it is not known what follows.
const LOOK: Duration = Duration::from_micros(200);
/// Milliseconds without a kernel after which others decide what moves.
const USED: u64 = 2000;

/// What the program waits for.
#[derive(Default)]
struct Asked {
    plan: Option<Plan>,
    /// Numbers of what was asked last and of what is done.
    last: u64,
    done: u64,
    /// Nothing is asked before this, for the process has had its part of the link.
    rests: Option<Instant>,
    /// So many tries in a row were in vain.
    failed: u32,
}

static ASKED: Mutex<Option<Asked>> = Mutex::new(None);
static WANTED: Condvar = Condvar::new();
static DONE: Condvar = Condvar::new();
/// When a kernel was staged last, as [`figures`] counts; 0: never, or it is not known what follows.
static USED_AT: AtomicU64 = AtomicU64::new(0);

/// Until when nobody waits as that was in vain, as [`figures`] counts.
static VAIN: AtomicU64 = AtomicU64::new(0);
/// Kernels that waited until what they needed was there.
static WAITED: AtomicU64 = AtomicU64::new(0);

/// How many kernels have waited until what they needed was there.
pub(crate) fn waited() -> u64 {
    WAITED.load(Ordering::Relaxed)
}

fn asked() -> MutexGuard<'static, Option<Asked>> {
    let mut asked = ASKED.lock().unwrap_or_else(PoisonError::into_inner);
    asked.get_or_insert_default();
    asked
}

/// Whether programs have moved what they need. Where they wait in vain, others decide what moves.
pub(crate) fn is_used() -> bool {
    let (at, now) = (USED_AT.load(Ordering::Relaxed), figures::now());
    at != 0 && now.saturating_sub(at) < USED && now >= VAIN.load(Ordering::Relaxed)
}

/// A kernel is about to be launched, and something lies in host memory: has moved what it needs, where that is worth it. Answers whether what it
/// touches was noted.
#[cold]
pub(crate) fn before(function: u64, places: u64, extra: u64) -> bool {
    if process::policy() != NAMES[0] || process::is_pinned() || gate::is_inside() || gate::is_off()
    {
        return false;
    }
    let Some(mut memory) = look() else {
        return false;
    };
    if !memory.captures.is_empty() {
        return false;
    }
    let Some((device, named)) = named(&mut memory, function, places, extra) else {
        return true;
    };
    let Some(there) = memory.devices.get_mut(&device).and_then(Option::as_mut) else {
        return true;
    };
    there.staging.kernel(&named, figures::micros());
    let now = figures::now();
    let is_used = there.staging.is_used() && now >= VAIN.load(Ordering::Relaxed);
    USED_AT.store(if is_used { now } else { 0 }, Ordering::Relaxed);
    if !is_used {
        // Others decide.
        heat::note(&mut memory, |_, each| {
            named.iter().for_each(|extent| each(extent.0));
        });
        return true;
    }
    named
        .iter()
        .for_each(|extent| memory.touched_at(extent.0, now));
    let is_near = |extent: &Extent| !matches!(memory.movable(extent.0), Some((_, Tier::Host, _)));
    if named.iter().all(is_near) || is_resting() {
        return true;
    }
    let plan = plan(&memory, device, &named);
    drop(memory);
    if !plan.is_empty() {
        ask(plan);
    }
    true
}

/// The memory. Who moves has it for longer, and while it is known what follows nothing may be missed; else it is waited for a moment only.
fn look() -> Option<Held> {
    if is_used() {
        return Some(memory::lock());
    }
    let begun = Instant::now();
    loop {
        if let Some(memory) = memory::try_lock() {
            return Some(memory);
        }
        if begun.elapsed() > LOOK {
            return None;
        }
        std::hint::spin_loop();
    }
}

/// The extents that a kernel's arguments lead to, and their device.
fn named(
    memory: &mut Memory,
    function: u64,
    places: u64,
    extra: u64,
) -> Option<(i32, Vec<Extent>)> {
    let all = heat::of_launch(memory, function, places, extra, REACH);
    let mut all: Vec<Extent> = all.into_iter().map(Extent).collect();
    let device = all.iter().find_map(|extent| memory.device_of(extent.0))?;
    all.retain(|extent| memory.device_of(extent.0) == Some(device));
    Some((device, all))
}

fn plan(memory: &Memory, device: i32, named: &[Extent]) -> Plan {
    let Some(there) = memory.devices.get(&device).and_then(Option::as_ref) else {
        return Plan::default();
    };
    let own = |number| {
        let (of, tier, bytes) = memory.movable(number)?;
        (of == device).then_some((tier, bytes))
    };
    let numbers = 0..memory.numbers.len() as u32;
    let resident = numbers.filter_map(|number| match own(number)? {
        (Tier::Hbm, bytes) => Some((Extent(number), bytes)),
        _ => None,
    });
    let room = there.table.room(Tier::Hbm) * BLOCK;
    let all = room + there.table.used(Tier::Hbm) * BLOCK;
    let most = MOST.min(all / PART);
    let place = |extent: Extent| own(extent.0);
    let exchange = there.staging.exchange(named, resident, place, room, most);
    let numbers = |all: Vec<Extent>| all.into_iter().map(|extent| extent.0).collect();
    Plan {
        down: numbers(exchange.down),
        up: numbers(exchange.up),
    }
}

fn is_resting() -> bool {
    let asked = asked();
    let rests = asked.as_ref().and_then(|asked| asked.rests);
    rests.is_some_and(|end| Instant::now() < end)
}

/// Asks the mover for it, and waits.
fn ask(plan: Plan) {
    let mut all = asked();
    let Some(asked) = all.as_mut().filter(|asked| asked.plan.is_none()) else {
        return;
    };
    asked.plan = Some(plan);
    asked.last += 1;
    let number = asked.last;
    WANTED.notify_all();
    let waits = |all: &mut Option<Asked>| all.as_ref().is_some_and(|asked| asked.done < number);
    let (mut all, waited) = DONE
        .wait_timeout_while(all, PATIENCE, waits)
        .unwrap_or_else(PoisonError::into_inner);
    if waited.timed_out()
        && let Some(asked) = all.as_mut()
    {
        if asked.last == number {
            asked.plan = None;
        }
        asked.vain();
        // The program goes on at once: it may be what the work waits for.
        drop(all);
        gate::give_up();
    }
}

impl Asked {
    fn vain(&mut self) {
        let rest = REST * 2_u32.saturating_pow(self.failed.min(16));
        let rest = rest.min(LONGEST);
        VAIN.store(figures::now() + rest.as_millis() as u64, Ordering::Relaxed);
        self.failed = self.failed.saturating_add(1);
    }
}

/// What is waited for, with its number: for the mover's thread.
pub(crate) fn take() -> Option<(Plan, u64)> {
    let mut all = asked();
    let asked = all.as_mut()?;
    Some((asked.plan.take()?, asked.last))
}

/// So many bytes were moved for the plan of a number, in so much time.
pub(crate) fn done(number: u64, moved: u64, took: Duration) {
    let mut all = asked();
    if let Some(asked) = all.as_mut() {
        asked.done = number;
        if moved == 0 {
            asked.vain();
        } else {
            asked.failed = 0;
            VAIN.store(0, Ordering::Relaxed);
            WAITED.fetch_add(1, Ordering::Relaxed);
            let pause = budget::pause(moved, took);
            asked.rests = Some(Instant::now() + pause).filter(|_| !pause.is_zero());
        }
    }
    DONE.notify_all();
}

/// Sleeps so long, or until something is waited for.
pub(crate) fn wait(time: Duration) {
    let none = |all: &mut Option<Asked>| all.as_ref().is_none_or(|asked| asked.plan.is_none());
    drop(WANTED.wait_timeout_while(asked(), time, none));
}
