//! Sizes and times as PBS writes them.

/// KiB of a size such as `4046668kb`, `2gb`, `100b` or `10kw`, rounded up; a word has eight bytes. `None`: it is none.
pub fn kib(text: &str) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let number: u64 = text[..digits].parse().ok()?;
    let unit = text[digits..].to_ascii_lowercase();
    let (scale, word) = match unit.strip_suffix('w') {
        Some(scale) => (scale, 8),
        None => (unit.strip_suffix('b').unwrap_or(&unit), 1),
    };
    let number = number.checked_mul(word)?;
    Some(match scale {
        "" => number.div_ceil(1 << 10),
        "k" => number,
        "m" => number.checked_mul(1 << 10)?,
        "g" => number.checked_mul(1 << 20)?,
        "t" => number.checked_mul(1 << 30)?,
        "p" => number.checked_mul(1 << 40)?,
        _ => return None,
    })
}

/// Seconds of a time such as `90`, `01:30` or `100:00:00`; parts of a second are left out. `None`: it is none.
pub fn seconds(text: &str) -> Option<i64> {
    let whole = text.split('.').next().unwrap_or(text);
    let mut all: i64 = 0;
    for (nth, part) in whole.split(':').enumerate() {
        let digits = !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit());
        if nth > 2 || !digits {
            return None;
        }
        all = all.checked_mul(60)?.checked_add(part.parse().ok()?)?;
    }
    Some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_in_all_their_forms() {
        let sizes = ["4046668kb", "2gb", "1b", "1025", "3MB", "1kw", "2TB"];
        let wanted = [4_046_668, 2 << 20, 1, 2, 3 << 10, 8, 2 << 30];
        assert_eq!(sizes.map(kib), wanted.map(Some));
        for bad in ["", "kb", "-1kb", "1xb", "1.5gb", "99999999999999999gb"] {
            assert_eq!(kib(bad), None, "{bad}");
        }
        let times = ["90", "01:30", "100:00:00", "00:00:01.9"];
        assert_eq!(times.map(seconds), [90, 90, 360_000, 1].map(Some));
        for bad in ["", ":", "1:2:3:4", "-5", "1h", "9999999999999999999"] {
            assert_eq!(seconds(bad), None, "{bad}");
        }
    }
}
