//! Slurm's files are read as Slurm reads them: generated files with every key and every liberty of their syntax, what slurmd and slurmctld
//! make of them beside what gpuos does.

use std::path::Path;

use gpuos_config::slurm_conf::{NodeLines, conf_lines, gpu_devices};
use gpuos_lab::Suite;
use gpuos_model::hostlist::expand;
use gpuos_model::rng::Rng;
use gpuos_tests::show::long_field;
use gpuos_tests::{Cluster, Setup, per_suite};

per_suite!(gpus_are_those_of_slurmd, nodes_are_those_of_slurmctld);

/// Files that are tried on each release; more by `GPUOS_SLURM_FILES`.
const FILES: usize = 40;

/// What is written, and in which form: the same for the same seed.
struct Dice(Rng);

impl Dice {
    fn new(seed: usize) -> Dice {
        Dice(Rng::new(seed as u64))
    }

    fn below(&mut self, end: usize) -> usize {
        self.0.below(end as u64) as usize
    }

    fn one<'a>(&mut self, of: &[&'a str]) -> &'a str {
        of[self.below(of.len())]
    }

    /// A word in some case.
    fn cased(&mut self, word: &str) -> String {
        match self.below(3) {
            0 => word.to_ascii_lowercase(),
            1 => word.to_ascii_uppercase(),
            _ => word.to_owned(),
        }
    }

    /// `Key=Value` in one of the forms that Slurm takes.
    fn pair(&mut self, key: &str, value: &str) -> String {
        let (key, equals) = (self.cased(key), self.one(&["=", " =", "= ", "\t=\t"]));
        let quote = self.one(&["", "", "\""]);
        format!("{key}{equals}{quote}{value}{quote}")
    }

    /// A line of pairs, in one line or several, with comments.
    fn line(&mut self, pairs: &[String]) -> String {
        let mut text = self
            .one(&["", " ", "# Name=gpu File=/nowhere \\\n", "\n\n"])
            .to_owned();
        for (at, pair) in pairs.iter().enumerate() {
            if at > 0 {
                text += self.one(&[" ", "  ", "\t", " \\\n", "\\  \n  ", " \\ # more\n"]);
            }
            text += pair;
        }
        text + self.one(&["\n", " \n", " # end\n", "\r\n"])
    }
}

impl Dice {
    /// A line of these keys and values.
    fn whole(&mut self, pairs: &[(&str, &str)]) -> String {
        let pairs: Vec<String> = pairs
            .iter()
            .map(|(key, value)| self.pair(key, value))
            .collect();
        self.line(&pairs)
    }
}

fn seeds() -> usize {
    let given = std::env::var("GPUOS_SLURM_FILES").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(FILES)
}

/// A reader of the lab's files.
fn reader(folder: &Path) -> impl Fn(&str) -> Result<Option<String>, String> {
    move |name| Ok(std::fs::read_to_string(folder.join(name)).ok())
}

/// The GPUs of slurmd: the file of each, in its order.
fn of_slurmd(cluster: &Cluster, node: &str) -> Result<Vec<String>, String> {
    let out = cluster
        .lab
        .output("slurmd", &["-G", "-N", node])
        .expect("slurmd runs");
    let text =
        String::from_utf8_lossy(&out.stderr).into_owned() + &String::from_utf8_lossy(&out.stdout);
    if !out.status.success() {
        return Err(text);
    }
    let mut files = Vec::new();
    for line in text
        .lines()
        .filter(|line| line.to_ascii_lowercase().contains("gres name=gpu "))
    {
        let word = |key: &str| {
            let mut words = line.split_whitespace();
            words
                .find_map(|word| word.strip_prefix(key))
                .unwrap_or_default()
        };
        let count: usize = word("Count=").parse().expect("a count");
        let folder = format!("{}/", cluster.lab.device_dir().display());
        let names = word("File=").replace(&folder, "");
        let names = expand(&names).expect("files");
        files.extend(names.iter().take(count).map(|name| folder.clone() + name));
    }
    Ok(files)
}

fn gpus_are_those_of_slurmd(suite: &Suite) {
    let mut setup = Setup::new("gresfiles", suite);
    setup.spec.nodes = 1.into();
    let Some(cluster) = setup.stock().up() else {
        return;
    };
    let folder = cluster.lab.dir().join("etc");
    let device = cluster
        .lab
        .device_dir()
        .join("nvidia")
        .display()
        .to_string();
    let (mut compared, mut refused) = (0, String::new());
    for seed in 0..seeds() {
        let mut dice = Dice::new(seed);
        let (gres, conf) = gres_conf(&mut dice, &device);
        cluster
            .lab
            .edit_slurm_conf(|text| with_gres(&text, &gres))
            .expect("edits");
        let mut lines = conf.split_inclusive('\u{1}');
        let first = lines.next().unwrap_or_default().replace('\u{1}', "");
        let rest: String = lines.collect::<String>().replace('\u{1}', "");
        let include = match rest.is_empty() {
            true => String::new(),
            false => format!("{} gres-more.conf\n", dice.cased("Include")),
        };
        cluster
            .lab
            .write_conf("gres-more.conf", &rest)
            .expect("writes");
        cluster
            .lab
            .write_conf("gres.conf", &(first + &include))
            .expect("writes");
        let case = format!("seed {seed}: Gres={gres}\n{conf}");
        match of_slurmd(&cluster, "n1") {
            Ok(files) => {
                let ours = gpu_devices("n1", &reader(&folder)).expect("reads");
                let ours: Vec<String> = ours.into_iter().map(|gpu| gpu.file).collect();
                assert_eq!(ours, files, "{case}");
                compared += 1;
            }
            Err(why) => refused += &format!("{case}\n{why}\n"),
        }
    }
    assert!(
        compared * 10 >= seeds() * 8,
        "{compared} files were compared; slurmd refused:\n{refused}"
    );
}

fn with_gres(text: &str, gres: &str) -> String {
    let line = |line: &str| {
        let words = line.split(' ').map(|word| match word.starts_with("Gres=") {
            true => format!("Gres={gres}"),
            false => word.to_owned(),
        });
        words.collect::<Vec<_>>().join(" ") + "\n"
    };
    text.lines().map(line).collect()
}

/// `Gres=` of a node, and a gres.conf of which what stands behind a 1 goes into an included file.
fn gres_conf(dice: &mut Dice, device: &str) -> (String, String) {
    let types = dice.one(&["", "a", "a,b", "b,a"]);
    let types: Vec<&str> = types.split(',').collect();
    let mut numbers: Vec<usize> = (0..8).collect();
    let mut counts = vec![0; types.len()];
    let mut conf = String::new();
    while !numbers.is_empty() && dice.below(6) > 0 {
        let at = dice.below(types.len());
        let take = (1 + dice.below(3)).min(numbers.len());
        let own: Vec<usize> = (0..take)
            .map(|_| numbers.remove(dice.below(numbers.len())))
            .collect();
        let list = own
            .iter()
            .map(usize::to_string)
            .collect::<Vec<_>>()
            .join(",");
        let list = match dice.below(2) {
            0 => format!("{device}[{list}]"),
            _ => own
                .iter()
                .map(|n| format!("{device}{n}"))
                .collect::<Vec<_>>()
                .join(","),
        };
        let is_one = take > 1 && dice.below(3) == 0;
        let key = match is_one {
            true => "MultipleFiles",
            false => dice.one(&["File", "Files"]),
        };
        counts[at] += if is_one { 1 } else { take };
        let mut pairs = vec![dice.pair(key, &list)];
        if !types[at].is_empty() {
            pairs.push(dice.pair("Type", types[at]));
        }
        let (first, last) = (dice.below(4), 4 + dice.below(4));
        match dice.below(4) {
            0 => pairs.push(dice.pair("Cores", &format!("{first}-{last}"))),
            1 => pairs.push(dice.pair("CPUs", &format!("{first},{last}"))),
            _ => {}
        }
        if !is_one && dice.below(3) == 0 {
            pairs.push(dice.pair("Count", &take.to_string()));
        }
        match dice.below(4) {
            0 => pairs.push(dice.pair("Links", "-1,0")),
            1 => pairs.push(dice.pair("Link", "0,-1")),
            _ => {}
        }
        let mut head = {
            let name = dice.one(&["gpu", "gpu", "GPU"]);
            vec![dice.pair("Name", name)]
        };
        match dice.below(4) {
            0 => head.insert(0, dice.pair("NodeName", "n1")),
            1 => head.insert(0, dice.pair("NodeName", "n[1-3],m1")),
            _ => {}
        }
        head.extend(pairs);
        if dice.below(8) == 0 {
            // A line for others.
            let file = format!("{device}7");
            conf += &dice.whole(&[("NodeName", "n[2-9]"), ("Name", "gpu"), ("File", &file)]);
        }
        let line = dice.line(&head);
        conf += line.trim_start_matches(' ');
        if dice.below(5) == 0 {
            conf.push('\u{1}');
        }
    }
    if dice.below(3) == 0 {
        conf += "AutoDetect=off\n";
    }
    // slurm.conf counts as many, sometimes fewer; more would take the node out.
    let mut gres: Vec<String> = Vec::new();
    for (kind, count) in types.iter().zip(&counts) {
        let count = match dice.below(4) {
            0 if *count > 1 => count - 1,
            _ => *count,
        };
        if count > 0 {
            gres.push(match kind.is_empty() {
                true => format!("gpu:{count}"),
                false => format!("gpu:{kind}:{count}"),
            });
        }
    }
    match gres.is_empty() {
        true => ("gpu:1".into(), format!("Name=gpu File={device}0\n")),
        false => (gres.join(","), conf),
    }
}

fn nodes_are_those_of_slurmctld(suite: &Suite) {
    let mut setup = Setup::new("nodefiles", suite);
    setup.spec.nodes = 1.into();
    let Some(cluster) = setup.stock().up() else {
        return;
    };
    let mut dice = Dice::new(seeds());
    let mut conf = String::new();
    for at in 0..seeds() {
        let mut pairs = vec![
            dice.pair("NodeName", &format!("g{at}")),
            // Nobody is asked at these addresses.
            dice.pair("NodeHostname", "localhost"),
            dice.pair("NodeAddr", "127.0.0.1"),
            dice.pair("Port", &(20_000 + at).to_string()),
        ];
        let sockets = 1 + dice.below(4);
        let (cores, threads) = (1 + dice.below(8), 1 + dice.below(2));
        let all = sockets * cores * threads;
        let shape: &[(&str, usize)] = match dice.below(9) {
            0 => &[("CPUs", all)],
            1 => &[("CPUs", all), ("CoresPerSocket", cores)],
            2 => &[
                ("CPUs", all),
                ("CoresPerSocket", cores),
                ("ThreadsPerCore", threads),
            ],
            3 => &[("Sockets", sockets), ("CoresPerSocket", cores)],
            4 => &[
                ("Boards", 2),
                ("SocketsPerBoard", sockets),
                ("CoresPerSocket", cores),
            ],
            5 => &[("Procs", all), ("CoresPerSocket", cores)],
            6 => &[("Boards", 2), ("CoresPerSocket", cores)],
            7 => &[
                ("Sockets", sockets),
                ("Sockets", sockets + 1),
                ("ThreadsPerCore", threads),
            ],
            _ => &[],
        };
        for (key, value) in shape {
            let pair = dice.pair(key, &value.to_string());
            pairs.push(pair);
        }
        if dice.below(2) == 0 {
            let gres = dice.one(&["gpu:2", "gpu:a:2,gpu:b:1", "gpu:a:4", "gpu:1K"]);
            pairs.push(dice.pair("Gres", gres));
        }
        if dice.below(2) == 0 {
            let memory = (1000 + dice.below(1000)).to_string();
            pairs.push(dice.pair("RealMemory", &memory));
        }
        pairs.push(dice.pair("State", "DOWN"));
        let line = dice.line(&pairs);
        conf += &line;
        if dice.below(10) == 0 {
            let memory = (100 + dice.below(300)).to_string();
            conf += &dice.whole(&[
                ("NodeName", "DEFAULT"),
                ("TmpDisk", "7"),
                ("RealMemory", &memory),
            ]);
        }
    }
    cluster
        .lab
        .write_conf("nodes-lab.conf", &conf)
        .expect("writes");
    let folder = cluster.lab.dir().join("etc");
    let read = reader(&folder);
    let (lines, _) = conf_lines("slurm.conf", &read)
        .expect("reads")
        .expect("is there");
    let name = lines
        .iter()
        .find_map(|line| line.get("clustername"))
        .expect("a name");
    cluster
        .lab
        .write_conf(
            &format!("more-{}.conf", name.to_ascii_lowercase()),
            "Include nodes-lab.conf\n",
        )
        .expect("writes");
    cluster
        .lab
        .edit_slurm_conf(|text| text + "Include more-%c.conf\n")
        .expect("edits");
    cluster.restart_slurmctld();
    let text = cluster.run("scontrol", &["show", "node"]);
    let ours = NodeLines::read(&read).expect("reads").all();
    let memory = NodeLines::read(&read).expect("reads").memory_mib();
    let mut compared = 0;
    for record in text
        .split("\n\n")
        .filter(|record| record.contains("NodeName=g"))
    {
        let word = |key: &str| {
            long_field(record, key)
                .unwrap_or_default()
                .trim()
                .to_owned()
        };
        let of = |key: &str| {
            let value = record
                .split_whitespace()
                .find_map(|word| word.strip_prefix(key));
            value.unwrap_or_default().to_owned()
        };
        let name = of("NodeName=");
        let at = ours.iter().position(|node| node.name == name);
        let at = at.unwrap_or_else(|| panic!("{name} is not read of\n{conf}"));
        let node = &ours[at];
        let shown = (of("Sockets="), of("CoresPerSocket="), of("RealMemory="));
        let memory = memory[at].max(1);
        let read = (
            node.sockets.to_string(),
            node.cores_per_socket.to_string(),
            memory.to_string(),
        );
        assert_eq!(read, shown, "{name}: {record}");
        let gpus: usize = word("Gres")
            .split(',')
            .filter_map(|one| {
                one.strip_prefix("gpu:")?
                    .split('(')
                    .next()?
                    .rsplit(':')
                    .next()?
                    .parse::<usize>()
                    .ok()
            })
            .sum();
        if gpus < 1024 {
            assert_eq!(node.gpus % 1024, gpus, "{name}: {record}");
        }
        compared += 1;
    }
    assert_eq!(compared, seeds());
    assert_eq!(
        ours.len(),
        compared + 1,
        "a node that slurmctld does not have"
    );
}
