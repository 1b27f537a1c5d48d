//! Manifests: what is written is read, and nothing else is.

use gpuos_checkpoint::ids::{CheckpointId, Digest, NodeIndex};
use gpuos_checkpoint::manifest::{
    Authentic, Coded, Counts, Encryption, Extent, FileEntry, FolderEntry, KeyId, Kind, MAC_BYTES,
    MAX_DEPTH, Manifest, NodeSet, Refused, Segment, Stored, Time, Unsealed, check, rank_folder,
    rank_of, ranks,
};
use proptest::prelude::*;

const PAGE: u64 = 4096;

fn id(number: u32) -> CheckpointId {
    CheckpointId {
        number,
        attempt: 0xc0ffee,
    }
}

fn raw(segment: u16, offset: u64, length: u32) -> Extent {
    let digest = Digest([7; 32]);
    let kind = Kind::Raw(Stored {
        segment,
        offset,
        length,
        digest,
    });
    Extent {
        raw: length.into(),
        kind,
    }
}

fn file(path: &[u8], extents: Vec<Extent>) -> FileEntry {
    FileEntry {
        path: path.to_vec(),
        mode: 0o640,
        mtime: Time {
            seconds: -1,
            nanos: 5,
        },
        size: extents.iter().map(|extent| extent.raw).sum(),
        extents,
    }
}

/// Node 1 of 4, in a set of three with one parity shard, with two files and an earlier segment.
fn good() -> Manifest {
    let zero = Extent {
        raw: 1 << 40,
        kind: Kind::Zero,
    };
    let files = vec![
        file(
            b"model/0.bin",
            vec![raw(0, 0, 5000), zero, raw(1, PAGE, 17)],
        ),
        file(b"state \xff\n", vec![raw(0, 2 * PAGE, 4096)]),
        file(b"empty", vec![]),
    ];
    let folder = |path: &[u8]| FolderEntry {
        path: path.to_vec(),
        mode: 0o750,
    };
    Manifest {
        id: id(9),
        job: "12[3].server".parse().unwrap(),
        uid: 1000,
        node: NodeIndex(1),
        nodes: 4,
        time: 1_700_000_000,
        set: NodeSet {
            members: vec![NodeIndex(2), NodeIndex(1), NodeIndex(3)],
            parity: 1,
            chunk: 2 * PAGE,
        },
        segments: vec![Segment::new(id(9), 3 * PAGE), Segment::new(id(4), 2 * PAGE)],
        folders: vec![folder(b"model"), folder(b"nothing")],
        counts: Counts::of(&files).unwrap(),
        files,
    }
}

/// A stand-in for the keyed code: what it is over decides it.
fn code(signed: &[u8]) -> [u8; MAC_BYTES] {
    let mut sum = [0x5au8; MAC_BYTES];
    for (index, byte) in signed.iter().enumerate() {
        let at = index % MAC_BYTES;
        sum[at] = sum[at].rotate_left(3) ^ byte;
        sum[(at + 7) % MAC_BYTES] = sum[(at + 7) % MAC_BYTES].wrapping_add(*byte | 1);
    }
    sum
}

fn written(manifest: &Manifest) -> Vec<u8> {
    Unsealed::new(manifest).unwrap().seal(code)
}

fn read(bytes: &[u8]) -> Result<Manifest, Refused> {
    Authentic::verify(bytes, |signed, mac| code(signed) == *mac).and_then(Authentic::parse)
}

/// With a code that holds, as by somebody who has the key.
fn resigned(mut bytes: Vec<u8>) -> Vec<u8> {
    bytes.truncate(bytes.len() - MAC_BYTES);
    let mac = code(&bytes);
    bytes.extend(mac);
    bytes
}

#[test]
fn what_is_written_is_read() {
    let manifest = good();
    assert_eq!(check(&manifest), Ok(()));
    assert_eq!(read(&written(&manifest)), Ok(manifest));
}

#[test]
fn without_its_code_nothing_is_read() {
    let bytes = written(&good());
    for at in 0..bytes.len() {
        let mut changed = bytes.clone();
        changed[at] ^= 1 << (at % 8);
        assert_eq!(read(&changed), Err(Refused::Code), "byte {at}");
    }
    for length in 0..bytes.len() {
        let refused = read(&bytes[..length]);
        assert!(matches!(refused, Err(Refused::Code | Refused::Length(_))));
    }
}

#[test]
fn other_formats_and_versions_are_told() {
    let bytes = written(&good());
    let with = |at: usize, byte: u8| {
        let mut changed = bytes.clone();
        changed[at] = byte;
        read(&resigned(changed))
    };
    assert_eq!(with(0, b'X'), Err(Refused::Format));
    assert_eq!(with(8, 2), Err(Refused::Format));
    assert_eq!(with(8, 3), Err(Refused::Version(3)));
    assert_eq!(with(10, 0), Err(Refused::Format));
    let version = Refused::Version(3).to_string();
    assert_eq!(version, "it has version 3, this release reads 1 and 2");
    // More after the manifest than its length says, and an empty body.
    let longer = [&bytes[..], &[0]].concat();
    assert_eq!(read(&resigned(longer)), Err(Refused::Format));
    assert_eq!(read(&resigned(vec![0; MAC_BYTES])), Err(Refused::Format));
}

#[test]
fn an_unknown_kind_of_extent_is_refused() {
    let mut manifest = good();
    manifest.files = vec![file(
        b"a",
        vec![Extent {
            raw: 77,
            kind: Kind::Zero,
        }],
    )];
    manifest.counts = Counts::of(&manifest.files).unwrap();
    let mut bytes = written(&manifest);
    // 77 bytes, kind 0, and after it the totals: one file, one extent, 77 bytes.
    let found = bytes.windows(5).rposition(|it| it == [77, 0, 1, 1, 77]);
    bytes[found.unwrap() + 1] = 3;
    assert_eq!(read(&resigned(bytes)), Err(Refused::Format));
}

/// Each is what somebody with the key could write; the word is in the sentence that says why not.
#[test]
fn what_does_not_hold_together_is_refused_with_a_sentence() {
    type Change = fn(&mut Manifest);
    let long = |part: usize, count: usize| [vec![b'a'; part], vec![b'/']].concat().repeat(count);
    let deep = long(1, MAX_DEPTH + 1);
    let cases: &[(Change, &str)] = &[
        (|m| m.id.number = 0, "count from 1"),
        (|m| m.node = NodeIndex(4), "of node 4 of a job with 4 nodes"),
        (|m| m.nodes = 0, "0 nodes"),
        (|m| m.segments.clear(), "names 0 segments"),
        (|m| m.segments.swap(0, 1), "first segment"),
        (|m| m.segments[1].id = id(9), "not earlier"),
        (|m| m.segments[1].id = id(10), "not earlier"),
        (|m| m.segments[1].id = id(0), "not earlier"),
        (|m| m.segments.push(m.segments[1]), "twice"),
        (|m| m.segments[0].length += 1, "multiple of 4096"),
        (|m| m.segments[0].length = 1 << 51, "multiple of 4096"),
        (|m| m.set.members.clear(), "set has 0 nodes"),
        (|m| m.set.members[0] = NodeIndex(1), "more than once"),
        (|m| m.set.members[1] = NodeIndex(0), "not in its set"),
        (
            |m| m.set.members[0] = NodeIndex(4),
            "nodes that the job has not",
        ),
        (|m| m.set.members = (0..300).map(NodeIndex).collect(), "300"),
        (|m| m.set.parity = 3, "nothing but parity"),
        (|m| m.set.parity = u16::MAX, "more parity"),
        (|m| m.set.parity = 0, "no parity to cut them for"),
        (|m| m.set.chunk = PAGE, "does not fit 2 chunks"),
        (|m| m.set.chunk = PAGE + 1, "multiple of 4096"),
        (|m| m.set.chunk = u64::MAX - 4095, "multiple of 4096"),
        (|m| m.files[0].path = b"".to_vec(), "empty"),
        (|m| m.files[0].path = b"/etc/passwd".to_vec(), "relative"),
        (|m| m.files[0].path = b"../x".to_vec(), "part \"..\""),
        (|m| m.files[0].path = b"a/..".to_vec(), "part \"..\""),
        (|m| m.files[0].path = b"a/./b".to_vec(), "part \".\""),
        (|m| m.files[0].path = b"a//b".to_vec(), "part \"\""),
        (|m| m.files[0].path = b"a/".to_vec(), "part \"\""),
        (|m| m.files[0].path = b"a\0b".to_vec(), "NUL"),
        (|m| m.files[0].path = vec![b'a'; 256], "part of 256 bytes"),
        (|m| m.files[0].path = vec![b'a'; 5000], "5000 bytes"),
        (|m| m.folders[0].path = b"..".to_vec(), "part \"..\""),
        (|m| m.files[1].path = b"empty".to_vec(), "\"empty\" twice"),
        (
            |m| m.files[1].path = b"nothing".to_vec(),
            "\"nothing\" twice",
        ),
        (|m| m.files[1].path = b"empty/x/y".to_vec(), "a folder of"),
        (|m| m.folders[1].path = b"empty/x".to_vec(), "a folder of"),
        (|m| m.files[0].mode = 0o4755, "more than permissions"),
        (|m| m.folders[0].mode = 0o1777, "more than permissions"),
        (|m| m.files[0].mtime.nanos = 1_000_000_000, "nanoseconds"),
        (|m| m.files[0].size += 1, "lack 1"),
        (|m| m.files[0].size -= 1, "more bytes than the file"),
        (|m| m.files[0].size = 1 << 51, "more than"),
        (|m| m.files[0].extents[0].raw = 0, "is empty"),
        (
            |m| m.files[0].extents[0].raw = u64::MAX,
            "more bytes than the file",
        ),
        (|m| m.files[0].extents[0].raw = 4999, "5000 stored"),
        (
            |m| m.files[0].extents[0] = raw(2, 0, 5000),
            "segment 2 of 2",
        ),
        (
            |m| m.files[0].extents[0] = raw(0, 1, 5000),
            "begins at byte 1",
        ),
        (
            |m| m.files[0].extents[0] = raw(0, 2 * PAGE, 5000),
            "not within it",
        ),
        (
            |m| m.files[0].extents[0] = raw(0, u64::MAX - 4095, 5000),
            "not within it",
        ),
        (|m| m.counts.bytes += 1, "totals"),
        (|m| m.counts.files = 0, "totals"),
        (|m| m.counts.extents = u64::MAX, "totals"),
    ];
    for (change, word) in cases {
        let mut manifest = good();
        change(&mut manifest);
        let refused = check(&manifest).unwrap_err().to_string();
        assert!(refused.contains(word), "{word}: {refused}");
        // What is refused is not written either.
        assert!(Unsealed::new(&manifest).is_err());
    }
    for path in [deep.as_slice(), &long(200, 25)] {
        let mut manifest = good();
        manifest.files[0].path = path[..path.len() - 1].to_vec();
        assert!(check(&manifest).is_err());
    }
}

/// A folder sorts before what is in it, whatever bytes come before `/`.
#[test]
fn a_file_that_is_a_folder_is_found_among_names_that_sort_between() {
    let mut manifest = good();
    manifest.folders.clear();
    let names: [&[u8]; 5] = [b"a", b"a ", b"a!b", b"a-", b"a.b"];
    manifest.files = names.map(|name| file(name, vec![])).to_vec();
    manifest.counts = Counts::of(&manifest.files).unwrap();
    assert_eq!(check(&manifest), Ok(()));
    manifest.files.push(file(b"a/b", vec![]));
    manifest.counts = Counts::of(&manifest.files).unwrap();
    let refused = check(&manifest).unwrap_err().to_string();
    assert_eq!(refused, "\"a\" is a file, and a folder of \"a/b\"");
}

fn cases() -> ProptestConfig {
    let many = if std::env::var_os("GPUOS_LONG").is_some() {
        50_000
    } else {
        2_000
    };
    ProptestConfig {
        failure_persistence: None,
        ..ProptestConfig::with_cases(many)
    }
}

/// As `good`, with an extent that is compressed and encrypted, one that is compressed, and one that is encrypted.
fn coded() -> Manifest {
    let mut manifest = good();
    manifest.segments[0].encryption = Some(Encryption {
        cipher: Encryption::AES_256_CTR,
        key: KeyId([3; 8]),
        salt: [9; 16],
    });
    let it = |offset: u64, length: u32, raw: u64, packing: u8, nth: Option<u64>| Extent {
        raw,
        kind: Kind::Coded(Coded {
            stored: Stored {
                segment: 0,
                offset,
                length,
                digest: Digest([8; 32]),
            },
            plain: Digest([7; 32]),
            packing,
            nth,
        }),
    };
    let extents = vec![
        it(0, 100, 5000, Coded::ZSTD, Some(0)),
        it(PAGE, 4095, 4096, Coded::ZSTD, None),
        it(2 * PAGE, 17, 17, Coded::AS_IT_IS, Some(1 << 40)),
    ];
    manifest.files.push(file(b"coded", extents));
    manifest.counts = Counts::of(&manifest.files).unwrap();
    manifest
}

/// Counter mode, as far as a frame is concerned.
fn flip(body: &mut [u8]) {
    body.iter_mut().for_each(|byte| *byte ^= 0x5a);
}

fn encrypted(manifest: &Manifest) -> Vec<u8> {
    let with = manifest.segments[0].encryption.unwrap();
    let unsealed = Unsealed::encrypted(manifest, &with, flip);
    unsealed.unwrap().seal(code)
}

#[test]
fn what_is_compressed_or_encrypted_is_written_in_the_second_version_and_read() {
    let manifest = coded();
    let plain = written(&manifest);
    assert_eq!((written(&good())[8], plain[8]), (1, 2));
    assert_eq!(read(&plain), Ok(manifest.clone()));
    let bytes = encrypted(&manifest);
    let named = |bytes: &[u8]| bytes.windows(5).any(|it| it == b"coded");
    assert!(named(&plain) && !named(&bytes));
    let holds = |signed: &[u8], mac: &[u8; MAC_BYTES]| code(signed) == *mac;
    let signed = Authentic::verify(&bytes, holds).unwrap();
    let again = signed.parse_with(|with, body| {
        flip(body);
        with.key == KeyId([3; 8]) && with.salt == [9; 16]
    });
    assert_eq!(again, Ok(manifest));
    // Without the key it says which one it is.
    assert_eq!(read(&bytes), Err(Refused::Key(KeyId([3; 8]))));
    let said = Refused::Key(KeyId([3; 8])).to_string();
    assert!(
        said.contains("the key 0303030303030303, which is not"),
        "{said}"
    );
    // Nothing of the second version hides in the first, and the list of keys is as long as that of segments.
    let mut older = plain.clone();
    older[8] = 1;
    assert_eq!(read(&resigned(older)), Err(Refused::Format));
    let end = plain.len() - MAC_BYTES;
    let mut fewer = plain.clone();
    fewer.drain(end - 1..end);
    fewer[10] -= 1;
    assert_eq!(read(&resigned(fewer)), Err(Refused::Format));
}

#[test]
fn a_way_of_coding_that_is_not_known_and_lengths_that_do_not_fit_are_refused() {
    type Change = fn(&mut Coded, &mut u64);
    let changes: [(Change, &str); 6] = [
        (
            |it, _| it.packing = 2,
            "compressed in a way of number 2, and this release knows 1, zstd, alone",
        ),
        (
            |it, raw| it.stored.length = *raw as u32,
            "fewer are stored where they are compressed",
        ),
        (|_, raw| *raw = (64 << 20) + 1, "67108864 at most"),
        (|it, _| it.packing = Coded::AS_IT_IS, "both are the same"),
        (|it, _| it.stored.offset = 1, "not at a multiple of 4096"),
        (
            |it, _| {
                it.stored.segment = 1;
                it.stored.length = 16;
            },
            "is encrypted, and its segment names no key",
        ),
    ];
    for (change, wanted) in changes {
        let mut manifest = coded();
        let last = manifest.files.last_mut().unwrap();
        let Extent { raw, kind } = &mut last.extents[0];
        let Kind::Coded(it) = kind else {
            panic!("it is coded");
        };
        change(it, raw);
        last.size = last.extents.iter().map(|extent| extent.raw).sum();
        manifest.counts = Counts::of(&manifest.files).unwrap();
        let refused = check(&manifest).unwrap_err().to_string();
        assert!(refused.contains(wanted), "{wanted}: {refused}");
    }
    let mut manifest = coded();
    let encryption = manifest.segments[0].encryption.as_mut().unwrap();
    encryption.cipher = 2;
    let refused = check(&manifest).unwrap_err().to_string();
    assert!(
        refused.contains("a way of number 2, and this release knows 1, AES-256-CTR, alone"),
        "{refused}"
    );
    // That of the manifest itself.
    let mut bytes = encrypted(&coded());
    bytes[19] = 2;
    let refused = read(&resigned(bytes)).unwrap_err().to_string();
    assert!(refused.contains("a way of number 2"), "{refused}");
}

proptest! {
    #![proptest_config(cases())]

    /// Whoever has the key and writes anything: it is a manifest that holds together, or it is refused.
    #[test]
    fn changed_bytes_with_a_code_that_holds_never_panic(
        changes in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..6),
        cut in prop::option::of(any::<prop::sample::Index>()),
        second in any::<bool>(),
    ) {
        let mut bytes = written(&if second { coded() } else { good() });
        for (at, byte) in changes {
            let at = at.index(bytes.len() - MAC_BYTES);
            bytes[at] = byte;
        }
        if let Some(cut) = cut {
            let length = cut.index(bytes.len());
            bytes.truncate(length.max(MAC_BYTES));
        }
        if let Ok(manifest) = read(&resigned(bytes)) {
            prop_assert_eq!(check(&manifest), Ok(()));
            prop_assert_eq!(read(&written(&manifest)), Ok(manifest));
        }
    }
}

#[test]
fn folders_of_ranks_are_read_as_they_are_written() {
    for (rank, size) in [(0, 1), (0, u16::MAX), (u16::MAX - 1, u16::MAX), (9, 10)] {
        let name = rank_folder(rank, size);
        assert_eq!(rank_of(name.as_bytes()), Some((rank, size)));
    }
    let bad: [&[u8]; 15] = [
        b"",
        b"rank-",
        b"rank-0-of-0",
        b"rank-1-of-1",
        b"rank-00-of-1",
        b"rank-0-of-01",
        b"rank-+0-of-1",
        b"rank--0-of-1",
        b"rank-0-of-65536",
        b"rank-0-of-1 ",
        b" rank-0-of-1",
        b"rank-0-of-1\n",
        b"Rank-0-of-1",
        b"rank-0-of-1-of-2",
        b"rank-0-of-\xff",
    ];
    for bad in bad {
        assert_eq!(rank_of(bad), None, "{}", bad.escape_ascii());
    }
    let mut manifest = good();
    assert_eq!(ranks(&manifest), []);
    let folder = |path: &[u8]| FolderEntry {
        path: path.to_vec(),
        mode: 0o700,
    };
    manifest.folders = vec![
        folder(b"rank-10-of-12"),
        folder(b"rank-9-of-12"),
        folder(b"in/rank-1-of-12"),
    ];
    manifest.files = vec![
        file(b"rank-2-of-12", vec![]),
        file(b"rank-3-of-12/x/y", vec![]),
        file(b"rank-9-of-12/x", vec![]),
    ];
    assert_eq!(ranks(&manifest), [(3, 12), (9, 12), (10, 12)]);
}

proptest! {
    #[test]
    fn no_name_is_read_as_a_rank_but_its_own(name in "(rank-)?[-0-9of+ ]{0,12}(-of-[0-9]{1,6})?") {
        if let Some((rank, size)) = rank_of(name.as_bytes()) {
            prop_assert!(rank < size);
            prop_assert_eq!(rank_folder(rank, size), name);
        }
    }
}
