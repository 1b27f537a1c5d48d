//! Rates of moves beside plain copies and a plain file in the same run, and the time of a call that moves nothing.
//!
//! `cargo bench -p gpuos_fabric --bench moves -- --folder FOLDER [--device 0]`, or `make bench-memory`. On the simulated driver, and in host memory that takes
//! the place of a GPU's, the link is memory itself, so what is added to a copy is seen best. Each rate is the median of several turns, which
//! the two that are compared take one after the other. Exit code 1 where moves are slower than [`GOAL`] of plain copies.

use std::ffi::CStr;
use std::fs::OpenOptions;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use gpuos_fabric::{Fabric, Options, Span};

const MIB: u64 = 1 << 20;
const TURNS: usize = 7;
/// Of the rate of plain copies.
const GOAL: f64 = 0.9;

struct Given {
    folder: PathBuf,
    /// MiB that are moved in a turn.
    mib: u64,
    /// MiB of an extent.
    extent: u64,
    /// A GPU's number; `None`: host memory takes its place.
    device: Option<i32>,
}

fn given() -> Option<Given> {
    let mut given = Given {
        folder: std::env::temp_dir(),
        mib: 512,
        extent: 16,
        device: None,
    };
    let mut arguments = std::env::args().skip(1);
    while let Some(name) = arguments.next() {
        match name.as_str() {
            // cargo test runs the program once.
            "--test" => return None,
            "--folder" => given.folder = arguments.next()?.into(),
            "--mib" => given.mib = arguments.next()?.parse().ok()?,
            "--extent" => given.extent = arguments.next()?.parse().ok()?,
            "--device" => given.device = Some(arguments.next()?.parse().ok()?),
            _ => {}
        }
    }
    Some(given)
}

/// The medians of several turns of two, in MiB a second. They take turns, so what else the machine does is in both.
fn rates(mib: u64, mut one: impl FnMut(), mut other: impl FnMut()) -> (f64, f64) {
    let time = |turn: &mut dyn FnMut()| {
        let begin = Instant::now();
        turn();
        begin.elapsed().as_secs_f64()
    };
    let pairs: Vec<(f64, f64)> = (0..TURNS)
        .map(|_| (time(&mut one), time(&mut other)))
        .collect();
    let median = |of: fn(&(f64, f64)) -> f64| {
        let mut all: Vec<f64> = pairs.iter().map(of).collect();
        all.sort_by(f64::total_cmp);
        mib as f64 / all[TURNS / 2]
    };
    (median(|pair| pair.0), median(|pair| pair.1))
}

fn fabric(given: &Given, host: u64, file: u64) -> Fabric {
    Fabric::open(&Options {
        device: given.device,
        hbm: given.mib / 2 * MIB,
        host: host * MIB,
        file: file * MIB,
        folder: Some(given.folder.clone()),
        extent: given.extent * MIB,
        policy: "lru".to_string(),
    })
    .expect("opens")
}

/// Writes all of an object that is twice as large as near memory, again and again: each extent comes in, and another one leaves with a copy.
fn sweep<'a>(given: &'a Given, fabric: &'a Fabric) -> impl FnMut() + 'a {
    let object = fabric.alloc(given.mib * MIB).expect("room");
    let extent = given.extent * MIB;
    let turn = move || {
        for index in 0..given.mib / given.extent {
            let span = Span {
                offset: index * extent,
                length: extent,
            };
            let ticket = fabric.acquire(object, span, true, None).expect("a part");
            fabric.wait(ticket, None).expect("there");
            fabric.release(ticket).expect("a ticket");
        }
    };
    // All of it has its place.
    turn();
    turn();
    turn
}

/// As many bytes by the driver's own copies, between memory of the GPU and host memory that it knows, and back.
fn copies_by_driver(given: &Given, number: i32) -> impl FnMut() {
    let bytes = given.extent * MIB;
    let count = given.mib / given.extent;
    let driver = Driver::get();
    let [mut device, mut context, mut near, mut host] = [0_u64; 4];
    driver.call(c"cuInit", [0; 4]);
    let number = number.cast_unsigned().into();
    driver.call(c"cuDeviceGet", [&raw mut device as u64, number, 0, 0]);
    let words = [&raw mut context as u64, device, 0, 0];
    driver.call(c"cuDevicePrimaryCtxRetain", words);
    driver.call(c"cuCtxSetCurrent", [context, 0, 0, 0]);
    let words = [&raw mut near as u64, bytes * count, 0, 0];
    driver.call(c"cuMemAlloc_v2", words);
    let words = [&raw mut host as u64, bytes * count, 0, 0];
    driver.call(c"cuMemHostAlloc", words);
    // They end with the process.
    move || {
        for offset in (0..count).map(|at| at * bytes) {
            let (near, host) = (near + offset, host + offset);
            driver.call(c"cuMemcpyHtoD_v2", [near, host, bytes, 0]);
            driver.call(c"cuMemcpyDtoH_v2", [host, near, bytes, 0]);
        }
    }
}

/// The driver, by the names of its functions.
struct Driver {
    library: *mut libc::c_void,
}

impl Driver {
    fn get() -> Driver {
        // SAFETY: the name is a C string; the fabric loads the same library.
        let library = unsafe { libc::dlopen(c"libcuda.so.1".as_ptr(), libc::RTLD_NOW) };
        assert!(!library.is_null(), "no driver");
        Driver { library }
    }

    /// Calls a function that succeeds, with up to four words.
    fn call(&self, name: &CStr, words: [u64; 4]) {
        // SAFETY: functions of the driver take words and give a code; what they are given here is theirs by its documentation.
        let code = unsafe {
            let function = libc::dlsym(self.library, name.as_ptr());
            assert!(!function.is_null(), "{name:?} is not there");
            let function: extern "C" fn(u64, u64, u64, u64) -> u32 = std::mem::transmute(function);
            function(words[0], words[1], words[2], words[3])
        };
        assert_eq!(code, 0, "{name:?}");
    }
}

/// As many bytes from memory to memory and back, in huge pages as the fabric's.
fn copies(given: &Given) -> impl FnMut() {
    let bytes = (given.extent * MIB) as usize;
    let count = (given.mib / given.extent) as usize;
    let fill = |at: usize| {
        let mut room = vec![0_u8; bytes];
        let skip = room.as_ptr().align_offset(4096);
        // SAFETY: a hint about whole pages of the vector, which nothing was written to yet.
        unsafe {
            let at = room.as_mut_ptr().add(skip).cast();
            libc::madvise(at, bytes - 4096, libc::MADV_HUGEPAGE);
        }
        room.fill(at as u8 + 1);
        room
    };
    let mut from: Vec<Vec<u8>> = (0..count).map(fill).collect();
    let mut to: Vec<Vec<u8>> = (0..count).map(fill).collect();
    move || {
        for (from, to) in from.iter_mut().zip(&mut to) {
            to.copy_from_slice(black_box(from));
            from.copy_from_slice(black_box(to));
        }
    }
}

/// The same bytes to and from a file by one thread, past the page cache where that is possible.
fn file(given: &Given, folder: &Path) -> impl FnMut() {
    let bytes = (given.extent * MIB) as usize;
    let path = folder.join(".gpuos-bench");
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(true);
    let direct = options.clone().custom_flags(libc::O_DIRECT).open(&path);
    let direct = direct.ok().filter(|file| {
        let page = vec![0_u8; 3 * 4096];
        let skip = page.as_ptr().align_offset(4096);
        file.write_all_at(&page[skip..skip + 4096], 0).is_ok()
    });
    let file = direct.unwrap_or_else(|| options.open(&path).expect("a file"));
    std::fs::remove_file(&path).expect("removed");
    let mut room = vec![7_u8; bytes + 4096];
    let skip = room.as_ptr().align_offset(4096);
    let count = given.mib / given.extent;
    let mut turn = move || {
        let page = &mut room[skip..skip + bytes];
        for at in 0..count {
            let offset = at * bytes as u64;
            file.write_all_at(page, offset).expect("written");
            file.read_exact_at(page, offset).expect("read");
        }
    };
    turn();
    turn
}

/// Nanoseconds of acquire, wait and release of what is there: median and 99th percentile.
fn calls(given: &Given) -> (u128, u128) {
    let fabric = fabric(given, 0, 0);
    let object = fabric.alloc(given.extent * MIB).expect("room");
    let span = Span {
        offset: 0,
        length: 1,
    };
    let once = || {
        let begin = Instant::now();
        let ticket = fabric.acquire(object, span, false, None).expect("a part");
        fabric.wait(ticket, None).expect("there");
        fabric.release(ticket).expect("a ticket");
        begin.elapsed().as_nanos()
    };
    let mut all: Vec<u128> = (0..200_000).map(|_| once()).collect();
    all.sort_unstable();
    (all[all.len() / 2], all[all.len() / 100 * 99])
}

fn main() {
    let Some(given) = given() else { return };
    let place = match given.device {
        None => "host memory",
        Some(_) => "GPU",
    };
    let (median, late) = calls(&given);
    println!("near memory: {place}");
    println!("acquire, wait and release of what is there: p50 {median} ns, p99 {late} ns");
    // In and out.
    let mib = 2 * given.mib;
    let near = fabric(&given, given.mib, 0);
    let moves = sweep(&given, &near);
    let (moved, plain) = match given.device {
        None => rates(mib, moves, copies(&given)),
        Some(number) => rates(mib, moves, copies_by_driver(&given, number)),
    };
    let ratio = moved / plain;
    println!(
        "moves between near and host memory: {moved:.0} MiB/s, plain copies {plain:.0} MiB/s, ratio {ratio:.2}"
    );
    drop(near);
    let stored = fabric(&given, 0, given.mib);
    let moves = sweep(&given, &stored);
    let (moved, plain) = rates(mib, moves, file(&given, &given.folder));
    println!(
        "moves between near memory and a file: {moved:.0} MiB/s, a plain file {plain:.0} MiB/s, ratio {:.2}",
        moved / plain
    );
    drop(stored);
    if ratio < GOAL {
        println!("the ratio {ratio:.2} to plain copies is below the goal of {GOAL}");
        std::process::exit(1);
    }
}
