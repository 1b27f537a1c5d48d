//! Rates of moves beside plain copies and a plain file in the same run, and the time of a call that moves nothing.
//!
//! `cargo bench -p gpuos_fabric --bench moves -- --folder FOLDER [--device 0]`, or `make bench-memory`. On the simulated driver, and in host memory that takes
//! the place of a GPU's, the link is memory itself, so what is added to a copy is seen best. Host memory pays for new pages whenever an extent comes in. Each rate is
//! the median of several turns.

use std::fs::OpenOptions;
use std::hint::black_box;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::Instant;

use gpuos_fabric::{Fabric, Options, Span};

const MIB: u64 = 1 << 20;
const TURNS: usize = 7;

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

/// The median of several turns, in MiB a second.
fn rate(mib: u64, mut turn: impl FnMut()) -> f64 {
    let time = |_| {
        let begin = Instant::now();
        turn();
        begin.elapsed().as_secs_f64()
    };
    let mut all: Vec<f64> = (0..TURNS).map(time).collect();
    all.sort_by(f64::total_cmp);
    mib as f64 / all[TURNS / 2]
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
fn sweep(given: &Given, fabric: &Fabric) -> f64 {
    let object = fabric.alloc(given.mib * MIB).expect("room");
    let extent = given.extent * MIB;
    let turn = || {
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
    turn();
    turn();
    // In and out.
    rate(2 * given.mib, turn)
}

/// As many bytes from memory to memory and back.
fn copies(given: &Given) -> f64 {
    let bytes = (given.extent * MIB) as usize;
    let count = (given.mib / given.extent) as usize;
    let fill = |at: usize| vec![at as u8 + 1; bytes];
    let mut from: Vec<Vec<u8>> = (0..count).map(fill).collect();
    let mut to: Vec<Vec<u8>> = (0..count).map(fill).collect();
    rate(2 * given.mib, || {
        for (from, to) in from.iter_mut().zip(&mut to) {
            to.copy_from_slice(black_box(from));
            from.copy_from_slice(black_box(to));
        }
    })
}

/// The same bytes to and from a file by one thread, past the page cache where that is possible.
fn file(given: &Given, folder: &Path) -> f64 {
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
    let page = &mut room[skip..skip + bytes];
    let count = given.mib / given.extent;
    let mut turn = || {
        for at in 0..count {
            let offset = at * given.extent * MIB;
            file.write_all_at(page, offset).expect("written");
            file.read_exact_at(page, offset).expect("read");
        }
    };
    turn();
    rate(2 * given.mib, turn)
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
    let plain = copies(&given);
    let moved = sweep(&given, &fabric(&given, given.mib, 0));
    println!(
        "moves between near and host memory: {moved:.0} MiB/s, plain copies {plain:.0} MiB/s, ratio {:.2}",
        moved / plain
    );
    let plain = file(&given, &given.folder);
    let moved = sweep(&given, &fabric(&given, 0, given.mib));
    println!(
        "moves between near memory and a file: {moved:.0} MiB/s, a plain file {plain:.0} MiB/s, ratio {:.2}",
        moved / plain
    );
}
