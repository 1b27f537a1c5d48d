//! Faults as words, for command lines.

use std::str::FromStr;

use super::{DRAIN_AND_RESET, DRAIN_P2P, Fault, GPU_RESET, LinkCounter, NO_ACTION, NODE_REBOOT};
use crate::state::NO_INSTANCE;

/// Every fault with what follows its name; for help texts.
pub(super) const FORMS: [(&str, &str); 14] = [
    ("xid", "xid NUMBER [GPU-INSTANCE[/COMPUTE-INSTANCE]]"),
    (
        "ecc",
        "ecc corrected|uncorrected COUNT [dram|sram] [GPU-INSTANCE]",
    ),
    ("sram-threshold", "sram-threshold"),
    ("row-remap", "row-remap pending|failure"),
    ("retired-page", "retired-page single-bit|double-bit"),
    (
        "nvlink",
        "nvlink LINK down, or nvlink LINK replay|recovery|crc|ecc COUNT",
    ),
    ("pcie-replay", "pcie-replay COUNT"),
    ("pcie-link", "pcie-link GENERATION WIDTH"),
    ("thermal", "thermal CELSIUS"),
    ("power-brake", "power-brake"),
    ("lost", "lost"),
    ("hang", "hang SECONDS"),
    ("driver-timeout", "driver-timeout"),
    (
        "recovery-action",
        "recovery-action none|reset|reboot|drain-p2p|drain-and-reset",
    ),
];

impl Fault {
    /// Reads a fault, for example `xid 79` or `nvlink 3 down`. The error is a sentence that names
    /// what was given and what is accepted.
    pub fn parse(words: &[&str]) -> Result<Fault, String> {
        let [name, rest @ ..] = words else {
            return Err(format!("no fault given: {}", names()));
        };
        let Some((_, form)) = FORMS.iter().find(|(known, _)| known == name) else {
            return Err(format!("'{name}' is no fault: {}", names()));
        };
        let wrong = || format!("'{}': the form is: {form}", words.join(" "));
        read(name, rest).ok_or_else(wrong)
    }

    /// The forms of all faults, one a line.
    pub fn forms() -> String {
        FORMS.map(|(_, form)| form).join("\n")
    }
}

fn names() -> String {
    format!("give one of {}", FORMS.map(|(name, _)| name).join(", "))
}

fn number<T: FromStr>(word: &str) -> Option<T> {
    // No sign: FromStr takes a plus.
    word.bytes()
        .all(|b| b.is_ascii_digit())
        .then(|| word.parse().ok())?
}

fn read(name: &str, words: &[&str]) -> Option<Fault> {
    Some(match (name, words) {
        ("xid", [xid]) => Fault::Xid {
            xid: number(xid)?,
            gpu_instance: NO_INSTANCE,
            compute_instance: NO_INSTANCE,
        },
        ("xid", [xid, inside]) => {
            let (gpu, compute) = match inside.split_once('/') {
                Some((gpu, compute)) => (number(gpu)?, number(compute)?),
                None => (number(inside)?, NO_INSTANCE),
            };
            Fault::Xid {
                xid: number(xid)?,
                gpu_instance: gpu,
                compute_instance: compute,
            }
        }
        ("ecc", [kind, count, rest @ ..]) => {
            let (sram, rest) = match rest {
                ["sram", rest @ ..] => (true, rest),
                ["dram", rest @ ..] => (false, rest),
                rest => (false, rest),
            };
            Fault::Ecc {
                uncorrected: match *kind {
                    "corrected" => false,
                    "uncorrected" => true,
                    _ => return None,
                },
                sram,
                count: number(count)?,
                gpu_instance: match rest {
                    [] => NO_INSTANCE,
                    [instance] => number(instance)?,
                    _ => return None,
                },
            }
        }
        ("sram-threshold", []) => Fault::SramThreshold,
        ("row-remap", ["pending"]) => Fault::RowPending,
        ("row-remap", ["failure"]) => Fault::RowFailure,
        ("retired-page", ["single-bit"]) => Fault::RetiredPage { double_bit: false },
        ("retired-page", ["double-bit"]) => Fault::RetiredPage { double_bit: true },
        ("nvlink", [link, "down"]) => Fault::LinkDown {
            link: number(link)?,
        },
        ("nvlink", [link, counter, count]) => Fault::LinkErrors {
            link: number(link)?,
            counter: match *counter {
                "replay" => LinkCounter::Replay,
                "recovery" => LinkCounter::Recovery,
                "crc" => LinkCounter::Crc,
                "ecc" => LinkCounter::Ecc,
                _ => return None,
            },
            count: number(count)?,
        },
        ("pcie-replay", [count]) => Fault::PcieReplays {
            count: number(count)?,
        },
        ("pcie-link", [generation, width]) => Fault::PcieLink {
            generation: number(generation).filter(|g| (1..=6).contains(g))?,
            width: number(width).filter(|w| [1, 2, 4, 8, 16].contains(w))?,
        },
        ("thermal", [celsius]) => Fault::Thermal {
            celsius: number(celsius).filter(|&c: &u32| c <= 150)?,
        },
        ("power-brake", []) => Fault::PowerBrake,
        ("lost", []) => Fault::Lost,
        ("hang", [seconds]) => Fault::Hang {
            milliseconds: number(seconds).filter(|&s: &u64| s <= 86_400)? * 1000,
        },
        ("driver-timeout", []) => Fault::DriverTimeout,
        ("recovery-action", [action]) => Fault::Recovery {
            action: match *action {
                "none" => NO_ACTION,
                "reset" => GPU_RESET,
                "reboot" => NODE_REBOOT,
                "drain-p2p" => DRAIN_P2P,
                "drain-and-reset" => DRAIN_AND_RESET,
                _ => return None,
            },
        },
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Fault, String> {
        Fault::parse(&text.split_whitespace().collect::<Vec<_>>())
    }

    #[test]
    fn good_words_are_faults() {
        for text in [
            "xid 79",
            "xid 94 2/0",
            "xid 13 5",
            "ecc corrected 3",
            "ecc uncorrected 1 sram 2",
            "sram-threshold",
            "row-remap pending",
            "row-remap failure",
            "retired-page double-bit",
            "nvlink 3 down",
            "nvlink 17 crc 500",
            "pcie-replay 7",
            "pcie-link 3 8",
            "thermal 95",
            "power-brake",
            "lost",
            "hang 5",
            "driver-timeout",
            "recovery-action drain-and-reset",
        ] {
            parse(text).unwrap_or_else(|e| panic!("{text}: {e}"));
        }
    }

    #[test]
    fn others_are_refused_with_the_form() {
        for (text, part) in [
            ("", "give one of xid,"),
            ("fire", "'fire' is no fault"),
            ("xid", "xid NUMBER"),
            ("xid -1", "'xid -1'"),
            ("xid +1", "xid NUMBER"),
            ("xid 5 2/", "xid NUMBER"),
            ("ecc some 3", "corrected|uncorrected"),
            ("ecc corrected 3 sram 1 2", "ecc corrected"),
            ("nvlink 3 up", "nvlink LINK down"),
            ("pcie-link 9 16", "GENERATION"),
            ("pcie-link 4 3", "WIDTH"),
            ("thermal 900", "thermal CELSIUS"),
            ("hang 99999999999999999999", "hang SECONDS"),
            ("lost now", "the form is: lost"),
        ] {
            let error = parse(text).unwrap_err();
            assert!(error.contains(part), "{text}: {error}");
        }
    }
}
