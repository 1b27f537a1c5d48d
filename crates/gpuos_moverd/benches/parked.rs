//! How fast memory is parked on a disk and comes back, beside fio with O_DIRECT on the same disk in the same run.
//!
//! `cargo bench -p gpuos_moverd --bench parked -- --folder DIR --mib 2048 --turns 5`. The folder is to be on the disk that is measured. Exit code 1 where
//! a ratio is below [`GOAL`].

#[path = "../tests/parked/client.rs"]
#[allow(dead_code, reason = "its tests use all of it")]
mod client;

use std::path::Path;
use std::process::Command;
use std::time::Instant;

use client::{Client, Site};
use gpuos_memory::stow::{Digest, FromProgram, MOST_SLOTS, PIECE, ToProgram};

/// Of fio's rate.
const GOAL: f64 = 0.9;

/// The middle one.
fn median(mut rates: Vec<f64>) -> f64 {
    rates.sort_by(f64::total_cmp);
    rates[rates.len() / 2]
}

/// MiB/s.
fn rate(mib: u64, work: impl FnOnce()) -> f64 {
    let begun = Instant::now();
    work();
    mib as f64 / begun.elapsed().as_secs_f64()
}

/// Says something of each piece as soon as there is a slot, and hears the digests.
fn pump(
    client: &mut Client,
    pieces: u64,
    say: impl Fn(&mut Client, u32, u64) -> FromProgram,
) -> Vec<Digest> {
    let mut digests = vec![Digest([0; 32]); pieces as usize];
    let mut at = vec![None; MOST_SLOTS as usize];
    let mut free: Vec<u32> = (0..MOST_SLOTS).collect();
    let (mut next, mut done) = (0, 0);
    while done < pieces {
        while let Some(slot) = free.pop() {
            if next == pieces {
                break;
            }
            let said = say(client, slot, next);
            client.say(&said);
            at[slot as usize] = Some(next);
            next += 1;
        }
        let Some(ToProgram::Done { slot, digest }) = client.told() else {
            panic!("a piece was not moved");
        };
        let piece = at[slot as usize].take().expect("a piece");
        digests[piece as usize] = digest;
        free.push(slot);
        done += 1;
    }
    digests
}

/// MiB/s of fio, which says KiB/s of reads in its 7th field and of writes in its 48th; `None` where there is no fio.
fn fio(folder: &Path, mib: u64, rw: &str) -> Option<f64> {
    let out = Command::new("fio")
        .arg(format!("--directory={}", folder.display()))
        .arg(format!("--size={mib}m"))
        .arg(format!("--rw={rw}"))
        .args(["--name=fio", "--bs=4m", "--direct=1", "--ioengine=libaio"])
        .args(["--iodepth=8", "--fallocate=none", "--unlink=1"])
        .arg("--output-format=terse")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&out.stdout);
    let field = if rw == "read" { 6 } else { 47 };
    let rate = text.split(';').nth(field)?.parse::<f64>().ok()?;
    Some(rate / 1024.0)
}

fn main() {
    let words: Vec<String> = std::env::args().collect();
    let value = |name: &str| {
        let at = words.iter().position(|word| word == name)?;
        words.get(at + 1)
    };
    let number = |name: &str, usual| {
        let value = value(name).and_then(|value| value.parse().ok());
        value.unwrap_or(usual)
    };
    let (mib, turns): (u64, u64) = (number("--mib", 1024), number("--turns", 5));
    let folder = value("--folder").map_or_else(std::env::temp_dir, Into::into);
    let own = tempfile::tempdir_in(&folder).expect("a folder");
    let site = Site::within(own, mib << 20);
    site.start(0).expect("it parks");
    let pieces = (mib << 20) / PIECE;
    let bytes: Vec<u8> = (0..PIECE)
        .map(|at| ((at * 2_654_435_761) >> 13) as u8)
        .collect();
    let [mut put, mut get, mut write, mut read] = [const { Vec::new() }; 4];
    for _ in 0..turns {
        write.extend(fio(site.place.path(), mib, "write"));
        let mut client = Client::connect(&site);
        let mut digests = Vec::new();
        put.push(rate(mib, || {
            digests = pump(&mut client, pieces, |client, slot, piece| {
                // What the driver's copy does.
                client.fill(slot, &bytes);
                FromProgram::Put {
                    slot,
                    at: piece * PIECE,
                    bytes: PIECE,
                }
            });
        }));
        read.extend(fio(site.place.path(), mib, "read"));
        get.push(rate(mib, || {
            pump(&mut client, pieces, |_, slot, piece| FromProgram::Get {
                slot,
                at: piece * PIECE,
                bytes: PIECE,
                digest: digests[piece as usize],
            });
        }));
        client.say(&FromProgram::Drop);
        client.told();
    }
    println!("| parked on NVMe, {mib} MiB, {turns} turns | MiB/s | fio, O_DIRECT | of fio |");
    println!("| --- | --- | --- | --- |");
    let mut missed = 0;
    for (what, own, fio) in [("park", put, write), ("come back", get, read)] {
        let own = median(own);
        match fio.is_empty() {
            true => println!("| {what} | {own:.0} | skipped: there is no fio here | |"),
            false => {
                let fio = median(fio);
                println!("| {what} | {own:.0} | {fio:.0} | {:.2} |", own / fio);
                missed += i32::from(own / fio < GOAL);
            }
        }
    }
    // With its folder.
    drop(site);
    if missed > 0 {
        println!("{missed} of 2 ratios are below the goal of {GOAL}");
    }
    std::process::exit(missed.min(1));
}
