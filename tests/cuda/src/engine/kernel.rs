//! The kernels that there are. Each is a function over memory; its grid is not simulated, the number
//! of elements is an argument.

use std::ffi::c_void;
use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::abi::{Answer, code};
use crate::engine::context::Context;
use crate::engine::device::Moved;
use crate::engine::driver::Driver;
use crate::engine::image::Entry;
use crate::engine::work;
use crate::space::Who;

/// A kernel.
pub(crate) struct Kernel {
    pub(crate) name: &'static str,
    /// Bytes of each argument.
    pub(crate) params: &'static [u32],
    run: fn(&Args, &mut Machine<'_>) -> Answer<()>,
    ranges: fn(&Args) -> Vec<(u64, u64)>,
}

/// All kernels.
pub(crate) static KERNELS: [Kernel; 8] = [
    // fill(dst, value: u32, count): count words get the value.
    Kernel {
        name: "fill",
        params: &[8, 4, 8],
        run: fill,
        ranges: |a| vec![(a.u64(0), a.u64(2).saturating_mul(4))],
    },
    // copy(dst, src, bytes)
    Kernel {
        name: "copy",
        params: &[8, 8, 8],
        run: copy,
        ranges: |a| vec![(a.u64(0), a.u64(2)), (a.u64(1), a.u64(2))],
    },
    // add(dst, a, b, count): sums of words, modulo 2^32.
    Kernel {
        name: "add",
        params: &[8, 8, 8, 8],
        run: add,
        ranges: |a| {
            (0..3)
                .map(|i| (a.u64(i), a.u64(3).saturating_mul(4)))
                .collect()
        },
    },
    // saxpy(y, x, a: f32, count): y = a x + y.
    Kernel {
        name: "saxpy",
        params: &[8, 8, 4, 8],
        run: saxpy,
        ranges: |a| {
            (0..2)
                .map(|i| (a.u64(i), a.u64(3).saturating_mul(4)))
                .collect()
        },
    },
    // chase(out, start, steps): follows pointers and writes the last one.
    Kernel {
        name: "chase",
        params: &[8, 8, 8],
        run: chase,
        ranges: |a| vec![(a.u64(0), 8), (a.u64(1), 8)],
    },
    // checksum(out, src, bytes): FNV-1a of 64 bits.
    Kernel {
        name: "checksum",
        params: &[8, 8, 8],
        run: checksum,
        ranges: |a| vec![(a.u64(0), 8), (a.u64(1), a.u64(2))],
    },
    // walk(base, bytes, steps, seed): adds the step's number to words at places that the seed chooses.
    Kernel {
        name: "walk",
        params: &[8, 8, 8, 8],
        run: walk,
        ranges: |a| vec![(a.u64(0), a.u64(1))],
    },
    // wait(flag, value: u32): runs until the word has the value.
    Kernel {
        name: "wait",
        params: &[8, 4],
        run: wait,
        ranges: |a| vec![(a.u64(0), 4)],
    },
];

/// The arguments of a launch, a word for each.
pub(crate) struct Args {
    words: Vec<u64>,
    /// Where each word lies, for those who ask a graph for a node's arguments.
    places: Vec<usize>,
}

impl Args {
    pub(crate) fn new(words: Vec<u64>) -> Args {
        let places = words
            .iter()
            .map(|word| std::ptr::from_ref(word) as usize)
            .collect();
        Args { words, places }
    }

    /// A pointer to a pointer to each argument.
    pub(crate) fn pointers(&self) -> *const *const c_void {
        self.places.as_ptr().cast()
    }

    fn u64(&self, index: usize) -> u64 {
        self.words.get(index).copied().unwrap_or(0)
    }
}

/// A kernel with its arguments.
#[derive(Clone)]
pub(crate) struct Launch {
    pub(crate) function: u64,
    pub(crate) entry: Arc<Entry>,
    pub(crate) args: Arc<Args>,
    pub(crate) dims: [u32; 6],
    pub(crate) shared: u32,
}

impl Launch {
    /// The addresses that its arguments name.
    pub(crate) fn ranges(&self) -> Vec<(u64, u64)> {
        let kernel = self.entry.kernel;
        kernel.map_or_else(Vec::new, |kernel| (kernel.ranges)(&self.args))
    }

    pub(crate) fn run(&self, machine: &mut Machine<'_>) -> Answer<()> {
        let kernel = self.entry.kernel.ok_or(code::LAUNCH_FAILED)?;
        (kernel.run)(&self.args, machine)
    }
}

/// What a kernel runs on.
pub(crate) struct Machine<'a> {
    driver: &'static Driver,
    context: &'a Arc<Context>,
    moved: &'a mut Moved,
}

impl<'a> Machine<'a> {
    pub(crate) fn new(
        driver: &'static Driver,
        context: &'a Arc<Context>,
        moved: &'a mut Moved,
    ) -> Machine<'a> {
        Machine {
            driver,
            context,
            moved,
        }
    }

    fn read(&mut self, address: u64, into: &mut [u8]) -> Answer<()> {
        let who = Who::Kernel(self.context.device.index);
        work::read(self.driver, self.context, address, into, who, self.moved)
    }

    fn write(&mut self, address: u64, bytes: &[u8]) -> Answer<()> {
        let who = Who::Kernel(self.context.device.index);
        work::write(self.driver, self.context, address, bytes, who, self.moved)
    }

    fn word(&mut self, address: u64) -> Answer<u64> {
        let mut word = [0; 8];
        self.read(address, &mut word)?;
        Ok(u64::from_le_bytes(word))
    }
}

/// Bytes that a kernel has in hand at once.
const PIECE: u64 = 64 << 10;

/// Offset and length of each piece.
fn pieces(length: u64) -> impl Iterator<Item = (u64, usize)> {
    let count = length.div_ceil(PIECE);
    (0..count).map(move |i| (i * PIECE, PIECE.min(length - i * PIECE) as usize))
}

fn bytes_of(count: u64) -> Answer<u64> {
    count.checked_mul(4).ok_or(code::ILLEGAL_ADDRESS)
}

fn fill(args: &Args, machine: &mut Machine<'_>) -> Answer<()> {
    let pattern = (args.u64(1) as u32)
        .to_le_bytes()
        .repeat(PIECE as usize / 4);
    for (offset, size) in pieces(bytes_of(args.u64(2))?) {
        machine.write(args.u64(0).wrapping_add(offset), &pattern[..size])?;
    }
    Ok(())
}

fn copy(args: &Args, machine: &mut Machine<'_>) -> Answer<()> {
    let mut buffer = vec![0; PIECE as usize];
    for (offset, size) in pieces(args.u64(2)) {
        machine.read(args.u64(1).wrapping_add(offset), &mut buffer[..size])?;
        machine.write(args.u64(0).wrapping_add(offset), &buffer[..size])?;
    }
    Ok(())
}

/// Combines words of two places into words of a third.
fn zip(
    machine: &mut Machine<'_>,
    [to, a, b]: [u64; 3],
    count: u64,
    with: impl Fn([u8; 4], [u8; 4]) -> [u8; 4],
) -> Answer<()> {
    let mut left = vec![0; PIECE as usize];
    let mut right = vec![0; PIECE as usize];
    for (offset, size) in pieces(bytes_of(count)?) {
        machine.read(a.wrapping_add(offset), &mut left[..size])?;
        machine.read(b.wrapping_add(offset), &mut right[..size])?;
        for (x, y) in left[..size].chunks_exact_mut(4).zip(right.chunks_exact(4)) {
            let word = with([x[0], x[1], x[2], x[3]], [y[0], y[1], y[2], y[3]]);
            x.copy_from_slice(&word);
        }
        machine.write(to.wrapping_add(offset), &left[..size])?;
    }
    Ok(())
}

fn add(args: &Args, machine: &mut Machine<'_>) -> Answer<()> {
    let places = [args.u64(0), args.u64(1), args.u64(2)];
    zip(machine, places, args.u64(3), |x, y| {
        u32::from_le_bytes(x)
            .wrapping_add(u32::from_le_bytes(y))
            .to_le_bytes()
    })
}

fn saxpy(args: &Args, machine: &mut Machine<'_>) -> Answer<()> {
    let a = f32::from_bits(args.u64(2) as u32);
    let places = [args.u64(0), args.u64(1), args.u64(0)];
    zip(machine, places, args.u64(3), |x, y| {
        (a * f32::from_le_bytes(x) + f32::from_le_bytes(y)).to_le_bytes()
    })
}

fn chase(args: &Args, machine: &mut Machine<'_>) -> Answer<()> {
    let mut at = args.u64(1);
    for _ in 0..args.u64(2) {
        at = machine.word(at)?;
    }
    machine.write(args.u64(0), &at.to_le_bytes())
}

fn checksum(args: &Args, machine: &mut Machine<'_>) -> Answer<()> {
    let mut sum = 0xCBF2_9CE4_8422_2325_u64;
    let mut buffer = vec![0; PIECE as usize];
    for (offset, size) in pieces(args.u64(2)) {
        machine.read(args.u64(1).wrapping_add(offset), &mut buffer[..size])?;
        for byte in &buffer[..size] {
            sum = (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
    machine.write(args.u64(0), &sum.to_le_bytes())
}

fn walk(args: &Args, machine: &mut Machine<'_>) -> Answer<()> {
    let words = args.u64(1) / 8;
    let mut state = args.u64(3) | 1;
    for step in 0..args.u64(2) {
        if words == 0 {
            return Err(code::ILLEGAL_ADDRESS);
        }
        // Xorshift of 64 bits (Marsaglia).
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        let at = args.u64(0).wrapping_add((state % words) * 8);
        let word = machine.word(at)?.wrapping_add(step);
        machine.write(at, &word.to_le_bytes())?;
    }
    Ok(())
}

/// Longer than this no kernel waits: a test that forgot it must not hang for ever.
const PATIENCE: Duration = Duration::from_secs(120);

fn wait(args: &Args, machine: &mut Machine<'_>) -> Answer<()> {
    let start = Instant::now();
    let mut word = [0; 4];
    loop {
        machine.read(args.u64(0), &mut word)?;
        // A kernel that polls moves next to nothing.
        *machine.moved = Moved::default();
        if u32::from_le_bytes(word) == args.u64(1) as u32 {
            return Ok(());
        }
        if machine.context.has_failed() {
            return Ok(());
        }
        if start.elapsed() > PATIENCE {
            eprintln!("simulated libcuda: kernel 'wait' got no value in {PATIENCE:?} and gives up");
            return Err(code::LAUNCH_FAILED);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
}
