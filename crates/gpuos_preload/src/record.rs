//! `GPUOS_MEM_TRACE=FILE`: what the program touches, as a trace that `gpuos mem sim` and `gpuos plan --trace` read.
//!
//! It is what [`crate::heat`] sees: the arguments of kernels, the nodes of graphs, what copies and fills name. An extent of the trace is a
//! block of 2 MiB, so that it does not matter how a range was cut; a range has new numbers each time that it is allocated, of those that are
//! free. Who launches writes the lines, by the order in which it has the memory's lock: nothing is lost but where that cannot be had, and the
//! trace is the same whatever is moved.

use std::sync::Once;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::memory::{self, Held, Memory};
use crate::process::{self, BLOCK};
use crate::recorder::{Recorder, Sink};
use crate::table::index;
use crate::{driver, heat, staging, watch};

/// The file's name.
const TRACE: &str = "GPUOS_MEM_TRACE";
/// How long the memory's lock is waited for.
const PATIENCE: Duration = Duration::from_secs(1);

/// Calls that are missing, as the memory's lock could not be had.
static MISSING: AtomicU64 = AtomicU64::new(0);

/// Begins, if the environment says so.
pub(crate) fn begin() {
    let Some(name) = std::env::var_os(TRACE) else {
        return;
    };
    let tells = [index::cuFuncGetParamInfo, index::cuKernelGetParamInfo];
    if tells.iter().all(|call| driver::real(*call) == 0) {
        return process::say(format_args!(
            "{TRACE}: this driver does not tell what kernels are given, as those from CUDA 12.4 on do; nothing is recorded"
        ));
    }
    match Sink::open(&name, BLOCK >> 20) {
        Ok(sink) => {
            memory::lock().recorder = Some(Box::new(Recorder::new(sink)));
            watch::set_traced(true);
        }
        Err(why) => process::say(format_args!("{TRACE}: {why}; nothing is recorded")),
    }
}

/// The process does without this library's memory: says that there will be no trace, if one is wanted.
pub(crate) fn tell_none() {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        if std::env::var_os(TRACE).is_some() {
            process::say(format_args!(
                "{TRACE}: the program runs without gpuos's memory, and nothing is recorded; {} or a job's --gpuos-mem gives it that",
                process::GRANT
            ));
        }
    });
}

/// The process ends: what is kept is written. The memory's lock is waited for so long at most.
pub(crate) fn finish(most: Duration) {
    let Some(mut memory) = look(most) else {
        if watch::is_traced() {
            process::say(format_args!(
                "{TRACE}: the end is missing, as another thread was in the driver when the process ended"
            ));
        }
        return;
    };
    watch::set_traced(false);
    if let Some(mut recorder) = memory.recorder.take() {
        recorder.tell_missing(MISSING.load(Ordering::Relaxed));
        recorder.write();
        drop(memory);
        say_failed(&recorder);
    }
}

/// The memory, if something is recorded.
fn look(most: Duration) -> Option<Held> {
    let begun = Instant::now();
    while watch::is_traced() {
        if let Some(memory) = memory::try_lock() {
            return Some(memory);
        }
        if begun.elapsed() > most {
            MISSING.fetch_add(1, Ordering::Relaxed);
            return None;
        }
        std::thread::sleep(Duration::from_micros(20));
    }
    None
}

/// Has something recorded.
fn with(body: impl FnOnce(&mut Memory, &mut Recorder)) {
    let Some(mut memory) = look(PATIENCE) else {
        return;
    };
    if let Some(mut recorder) = memory.recorder.take() {
        body(&mut memory, &mut recorder);
        if recorder.failed().is_none() {
            memory.recorder = Some(recorder);
        } else {
            watch::set_traced(false);
            drop(memory);
            say_failed(&recorder);
        }
    }
}

/// A kernel and its arguments.
pub(crate) fn launch(function: u64, places: u64, extra: u64) {
    with(|memory, recorder| {
        let arguments = heat::arguments(memory, function);
        recorder.next_call();
        heat::words_of(&arguments, places, extra, |word| {
            touch(recorder, memory, word, reach(memory, word, true), true);
        });
    });
}

/// A graph is launched: what its nodes touch, one after the other.
pub(crate) fn graph(exec: u64) {
    with(|memory, recorder| {
        for words in memory.graphs.nodes(exec) {
            recorder.next_call();
            for word in words {
                let bytes = reach(memory, word.address, word.rest);
                touch(recorder, memory, word.address, bytes, true);
            }
        }
    });
}

/// A copy, a fill, or another call with these words.
pub(crate) fn call(base: &str, words: &[u64]) {
    with(|memory, recorder| {
        recorder.next_call();
        match (span(base, words), words) {
            (Some(bytes), [to, from, ..]) => {
                touch(recorder, memory, *to, bytes, true);
                if base.starts_with("cuMemcpy") {
                    touch(recorder, memory, *from, bytes, false);
                }
            }
            _ => {
                let addresses = words.iter();
                addresses.for_each(|word| touch(recorder, memory, *word, 1, true));
            }
        }
    });
}

/// Bytes of a copy from its second word to its first, or of a fill from its first on.
fn span(base: &str, words: &[u64]) -> Option<u64> {
    let each = match base.strip_suffix("Async").unwrap_or(base) {
        "cuMemcpy" | "cuMemcpyHtoD" | "cuMemcpyDtoH" | "cuMemcpyDtoD" | "cuMemsetD8" => 1,
        "cuMemsetD16" => 2,
        "cuMemsetD32" => 4,
        _ => return None,
    };
    Some(words.get(2)?.saturating_mul(each))
}

/// Bytes that an argument is taken to lead to.
fn reach(memory: &Memory, address: u64, rest: bool) -> u64 {
    match (rest, memory.maps.around(address)) {
        (false, _) => 1,
        (true, Some(_)) => heat::MOST,
        (true, None) => staging::REACH,
    }
}

/// So many bytes from an address on, as far as they are in one range, or in mappings that follow without a gap.
fn touch(recorder: &mut Recorder, memory: &Memory, address: u64, bytes: u64, writes: bool) {
    let end = address.saturating_add(bytes);
    let mut at = address;
    while at < end {
        let place = memory.place(at);
        let Some((start, range)) = memory.at(place) else {
            return;
        };
        let mapped = memory.maps.around(at);
        let left = mapped.map_or(u64::MAX, |(map, it)| it.bytes - (at - map));
        let part = left.min(start + range.bytes - place).min(end - at);
        recorder.blocks(range, place..place + part, writes);
        if mapped.is_none() {
            return;
        }
        at += part;
    }
}

fn say_failed(recorder: &Recorder) {
    if let Some(why) = recorder.failed() {
        process::say(format_args!("{TRACE}: {why}"));
    }
}
