//! The program that the kernel runs for each device file that a process of a job opens or makes: everything is allowed but GPUs that are
//! not the job's.

use std::collections::BTreeSet;

/// Device files with one major number, of which a job has some.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct Kept {
    /// Their major number.
    pub major: u32,
    /// Minor numbers from here on are everybody's; [`MINORS`]: none is.
    pub shared_from: u32,
    /// Those of the job.
    pub own: BTreeSet<u32>,
}

/// How many minor numbers the kernel has.
pub const MINORS: u32 = 1 << 20;

/// `BPF_DEVCG_DEV_CHAR` of linux/bpf.h: how the kernel calls character devices here.
const CHARACTER: u32 = 2;
/// Offsets of `struct bpf_cgroup_dev_ctx`: kind of device and access, major, minor.
const KIND: i16 = 0;
const MAJOR: i16 = 4;
const MINOR: i16 = 8;

/// Codes of instructions: a number of 32 bits is read from memory, a register is cut by a number, jumps where it equals a number, where it does not, and
/// where it is not below one; a register is set to a number, and the end, with what is in the first one.
const READ: u8 = 0x61;
const AND: u8 = 0x57;
const IF_EQUAL: u8 = 0x15;
const UNLESS_EQUAL: u8 = 0x55;
const IF_NOT_BELOW: u8 = 0x35;
const SET: u8 = 0xb7;
const END: u8 = 0x95;
/// The first register has the verdict; the second, at the start, the address of what is asked about; this one what is compared.
const VERDICT: u8 = 0;
const LOOKED_AT: u8 = 2;
const FROM_CONTEXT: u8 = 0x10;

/// One instruction: code, registers, offset or jump, number.
const fn op(code: u8, registers: u8, jump: i16, number: u32) -> u64 {
    let [low, high] = jump.to_le_bytes();
    let [a, b, c, d] = number.to_le_bytes();
    u64::from_le_bytes([code, registers, low, high, a, b, c, d])
}

const fn read(offset: i16) -> u64 {
    op(READ, LOOKED_AT | FROM_CONTEXT, offset, 0)
}

const fn verdict(allowed: bool) -> [u64; 2] {
    [op(SET, VERDICT, 0, allowed as u32), op(END, 0, 0, 0)]
}

/// The program, one instruction a number. Each list of what is kept is a block of its own: one jump leads over it where the major number is
/// another, and every other way through it ends in a verdict.
pub fn program(kept: &[Kept]) -> Vec<u64> {
    let mut code = vec![
        read(KIND),
        op(AND, LOOKED_AT, 0, 0xffff),
        op(IF_EQUAL, LOOKED_AT, 2, CHARACTER),
    ];
    code.extend(verdict(true));
    for one in kept {
        let block = block(one);
        // Lists are short: NVIDIA has 255 minor numbers.
        let over = i16::try_from(block.len()).unwrap_or(i16::MAX);
        code.push(read(MAJOR));
        code.push(op(UNLESS_EQUAL, LOOKED_AT, over, one.major));
        code.extend(block);
    }
    code.extend(verdict(true));
    code
}

/// What is decided about a device file with this major number.
fn block(kept: &Kept) -> Vec<u64> {
    let mut code = vec![read(MINOR)];
    // Each comparison jumps over those after it and over the refusal.
    let tests = kept.own.len() + 1;
    let beyond = |at: usize| i16::try_from(tests - at - 1 + 2).unwrap_or(i16::MAX);
    code.push(op(IF_NOT_BELOW, LOOKED_AT, beyond(0), kept.shared_from));
    for (at, minor) in kept.own.iter().enumerate() {
        code.push(op(IF_EQUAL, LOOKED_AT, beyond(at + 1), *minor));
    }
    code.extend(verdict(false));
    code.extend(verdict(true));
    code
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Runs a program as the kernel does, for an access of `kind` and `access` to a device; every program ends, for it only jumps ahead.
    fn run(code: &[u64], (kind, access): (u32, u32), (major, minor): (u32, u32)) -> bool {
        let mut registers = [u64::MAX; 11];
        let mut at = 0;
        loop {
            let [code_, both, low, high, a, b, c, d] = code[at].to_le_bytes();
            let (to, from) = (usize::from(both & 0xf), both >> 4);
            let offset = i16::from_le_bytes([low, high]);
            // The kernel widens it with its sign.
            let number = i64::from(i32::from_le_bytes([a, b, c, d])) as u64;
            at += 1;
            let jumps = match code_ {
                READ => {
                    assert_eq!(from, 1, "only what is asked about is read");
                    registers[to] = u64::from(match offset {
                        KIND => access << 16 | kind,
                        MAJOR => major,
                        MINOR => minor,
                        other => panic!("nothing is at {other}"),
                    });
                    false
                }
                AND => {
                    registers[to] &= number;
                    false
                }
                SET => {
                    registers[to] = number;
                    false
                }
                IF_EQUAL => registers[to] == number,
                UNLESS_EQUAL => registers[to] != number,
                IF_NOT_BELOW => registers[to] >= number,
                END => {
                    assert!(registers[0] < 2, "no verdict");
                    return registers[0] == 1;
                }
                other => panic!("no instruction of ours: {other:#x}"),
            };
            if jumps {
                assert!(offset > 0, "it jumps ahead only");
                at += usize::try_from(offset).unwrap();
            }
        }
    }

    fn gpus(own: &[u32]) -> Kept {
        Kept {
            major: 195,
            shared_from: 254,
            own: own.iter().copied().collect(),
        }
    }

    #[test]
    fn gpus_of_others_are_refused_and_nothing_else() {
        for own in [
            &[][..],
            &[0],
            &[3, 5],
            &[0, 1, 2, 3, 4, 5, 6, 7],
            &[253],
            &(0..254).collect::<Vec<_>>(),
        ] {
            for caps in [None, Some(&[][..]), Some(&[17, 300][..])] {
                let caps = caps.map(|own| Kept {
                    major: 236,
                    shared_from: MINORS,
                    own: own.iter().copied().collect(),
                });
                let kept: Vec<Kept> = std::iter::once(gpus(own)).chain(caps.clone()).collect();
                let code = program(&kept);
                for access in 1..8 {
                    for minor in (0..260).chain([300, 301, MINORS - 1]) {
                        let asked = |major| run(&code, (2, access), (major, minor));
                        let whole = minor >= 254 || own.contains(&minor);
                        assert_eq!(asked(195), whole, "195:{minor} of {own:?}");
                        let cap = caps.as_ref();
                        let slice = cap.is_none_or(|caps| caps.own.contains(&minor));
                        assert_eq!(asked(236), slice, "236:{minor} of {caps:?}");
                        for major in [0, 1, 194, 196, 510, u32::MAX] {
                            assert!(asked(major), "{major}:{minor}");
                        }
                        // A disk that has these numbers is none of ours.
                        assert!(run(&code, (1, access), (195, minor)));
                    }
                }
            }
        }
    }

    #[test]
    fn of_all_minor_numbers_a_job_opens_its_gpu_and_its_instances() {
        let caps = Kept {
            major: 236,
            shared_from: MINORS,
            own: [21, 22, 1077].into(),
        };
        let code = program(&[gpus(&[7]), caps.clone()]);
        for minor in (0..MINORS).filter(|minor| *minor < 5_000 || minor.is_multiple_of(97)) {
            let opens = |major| run(&code, (2, 7), (major, minor));
            assert_eq!(opens(195), minor == 7 || minor >= 254, "195:{minor}");
            assert_eq!(opens(236), caps.own.contains(&minor), "236:{minor}");
        }
    }

    /// The kernel's own check takes each of them, where this machine lets programs be loaded.
    #[test]
    fn the_kernel_takes_the_program() {
        use crate::hardware::device_programs::{DevicePrograms, ask, load};
        if ask() != DevicePrograms::Yes {
            eprintln!("skipped: programs cannot be loaded here");
            return;
        }
        for kept in [
            vec![],
            vec![gpus(&[])],
            vec![gpus(&(0..254).collect::<Vec<_>>())],
        ] {
            load(&program(&kept)).unwrap();
        }
    }
}
