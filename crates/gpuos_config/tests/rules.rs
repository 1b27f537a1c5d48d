//! Rules of co-location against a checker that looks at every pair of jobs, and what is said of them.

use std::collections::BTreeMap;

use gpuos_config::gpuos_toml::Config;
use gpuos_model::cluster::{Cluster, NO_DOMAIN};
use gpuos_placement::rules::{Bond, Book, Class, Facts, Rule, Rules, Tenant, Verdict};
use gpuos_placement::rules::{PowerDomain, Reserve};

use crate::counting::allocations;
use crate::plan_support::{cluster, pairs, tree};
use crate::random::Random;

const NODES: usize = 12;

const NAMES: [&str; 3] = ["a", "b", "c"];
const LEVELS: [&str; 4] = ["node", "nvlink", "leaf", "spine"];

fn facts(random: &mut Random) -> Facts<'static> {
    let uid = random.index(3);
    Facts {
        uid: uid as u32,
        user: NAMES[uid],
        account: random.pick(&NAMES),
        partition: random.pick(&["p", "q"]),
        class: random.pick(&[None, Some("a"), Some("b"), Some("c")]),
        exclusive: random.pick(&[None, None, None, Some("node"), Some("leaf"), Some("nvlink")]),
        nodes: 1 + random.index(3) as u32,
        minutes: random.pick(&[None, Some(10), Some(100)]),
    }
}

fn rules(random: &mut Random) -> Rules {
    let mut rules = Rules::default();
    for _ in 0..random.index(4) {
        let bond = match random.index(2) {
            0 => Bond::Classes(random.pick(&NAMES).into(), random.pick(&NAMES).into()),
            _ => Bond::Tenants(random.pick(&[Tenant::Account, Tenant::User])),
        };
        rules.rules.push(Rule {
            bond,
            level: random.pick(&LEVELS).into(),
            prefer: random.index(3) == 0,
            partition: random.pick(&[None, None, Some("p")]).map(String::from),
        });
    }
    for _ in 0..random.index(2) {
        let half = (0..NODES / 2).map(|n| format!("n{n}")).collect();
        rules.reserves.push(Reserve {
            count: 1 + random.index(4) as u32,
            level: random.pick(&LEVELS).into(),
            nodes: random.pick(&[&Vec::new(), &half]).clone(),
            gangs: 2 + random.index(2) as u32,
            hard: random.index(2) == 0,
            unless_shorter: random.pick(&[None, Some(60)]),
        });
    }
    if random.index(2) == 0 {
        rules.classes.push(Class {
            name: "c".into(),
            user: Some("b".into()),
            ..Class::default()
        });
    }
    rules
}

/// Twelve nodes; some are in no leaf.
fn site() -> Cluster {
    let leaf = |n: usize| if n % 5 == 4 { NO_DOMAIN } else { n as u32 / 3 };
    let leaves: Vec<u32> = (0..NODES).map(leaf).collect();
    let spine: Vec<u32> = (0..NODES).map(|n| n as u32 / 6).collect();
    let node_type = std::sync::Arc::new(pairs());
    cluster(
        &vec![node_type; NODES],
        &[("leaf", leaves), ("spine", spine)],
    )
}

/// What the rules mean, job by job.
struct Naive<'a> {
    rules: &'a Rules,
    cluster: &'a Cluster,
    jobs: BTreeMap<u32, (Facts<'static>, Vec<u32>)>,
}

impl Naive<'_> {
    /// Whether two nodes share a domain.
    fn together(&self, level: &str, a: u32, b: u32) -> bool {
        let levels = &self.cluster.fabric.levels;
        let of = levels
            .iter()
            .find(|l| l.name == level)
            .map(|l| &l.domain_of);
        a == b
            || of.is_some_and(|of| {
                let (a, b) = (of[a as usize], of[b as usize]);
                a == b && a != NO_DOMAIN
            })
    }

    fn class<'a>(&'a self, job: &Facts<'a>) -> Option<&'a str> {
        job.class.or_else(|| {
            let own = self
                .rules
                .classes
                .iter()
                .find(|c| c.user.as_deref() == Some(job.user));
            own.map(|c| c.name.as_str())
        })
    }

    fn apart(&self, rule: &Rule, a: &Facts, b: &Facts) -> bool {
        let here = |job: &Facts| rule.partition.as_ref().is_none_or(|p| p == job.partition);
        let differ = match &rule.bond {
            Bond::Tenants(Tenant::Account) => a.account != b.account,
            Bond::Tenants(Tenant::User) => a.uid != b.uid,
            Bond::Classes(x, y) => {
                let (a, b) = (self.class(a), self.class(b));
                let is = |c: Option<&str>, name: &String| c == Some(name.as_str());
                is(a, x) && is(b, y) || is(a, y) && is(b, x)
            }
        };
        here(a) && here(b) && differ
    }

    /// The worst that two jobs on two nodes are to each other.
    fn pair(&self, a: (&Facts, u32), b: (&Facts, u32)) -> Verdict {
        let sole = |job: &Facts| job.exclusive.is_some_and(|l| self.together(l, a.1, b.1));
        if sole(a.0) || sole(b.0) {
            return Verdict::Forbidden;
        }
        let broken = self
            .rules
            .rules
            .iter()
            .filter(|rule| self.apart(rule, a.0, b.0) && self.together(&rule.level, a.1, b.1));
        let worst = broken.map(|rule| match rule.prefer {
            true => Verdict::Avoided,
            false => Verdict::Forbidden,
        });
        worst.max().unwrap_or_default()
    }

    fn kept(&self, reserve: &Reserve, node: u32) -> bool {
        let part = |n: u32| reserve.nodes.is_empty() || reserve.nodes.contains(&format!("n{n}"));
        let load = |n: u32| {
            let held = self.jobs.values().flat_map(|(_, nodes)| nodes);
            held.filter(|held| self.together(&reserve.level, n, **held))
                .count()
        };
        // One node stands for its domain; a node outside all domains comes after those.
        let order = |n: u32| {
            let levels = &self.cluster.fabric.levels;
            let of = levels.iter().find(|l| l.name == reserve.level);
            match of.map(|l| l.domain_of[n as usize]) {
                Some(NO_DOMAIN) => (1, n),
                Some(domain) => (0, domain),
                None => (0, n),
            }
        };
        let first = |n: &u32| (0..*n).all(|m| !part(m) || !self.together(&reserve.level, m, *n));
        let mut heads: Vec<u32> = (0..NODES as u32)
            .filter(|n| part(*n))
            .filter(first)
            .collect();
        heads.sort_by_key(|n| (load(*n), std::cmp::Reverse(order(*n))));
        let kept = heads.iter().take(reserve.count as usize);
        part(node)
            && kept
                .into_iter()
                .any(|n| self.together(&reserve.level, *n, node))
    }

    fn verdict(&self, job: &Facts, node: u32) -> Verdict {
        let places = self
            .jobs
            .values()
            .flat_map(|(f, nodes)| nodes.iter().map(move |n| (f, *n)));
        let others = places.map(|other| self.pair((job, node), other)).max();
        let reserved = self.rules.reserves.iter().filter(|reserve| {
            let short = reserve
                .unless_shorter
                .zip(job.minutes)
                .is_some_and(|(m, has)| has < m);
            job.nodes < reserve.gangs && !short && self.kept(reserve, node)
        });
        let reserved = reserved.map(|reserve| match reserve.hard {
            true => Verdict::Forbidden,
            false => Verdict::LastResort,
        });
        others
            .unwrap_or_default()
            .max(reserved.max().unwrap_or_default())
    }
}

#[test]
fn verdicts_are_those_of_a_look_at_every_pair_and_no_hard_rule_is_ever_broken() {
    let mut random = Random(0x9e37_79b9_7f4a_7c15);
    let cluster = site();
    let (mut forbidden, mut soft, mut placed) = (0, 0, 0);
    for _ in 0..120 {
        let rules = rules(&mut random);
        let mut book = Book::new(&rules, &cluster);
        let mut naive = Naive {
            rules: &rules,
            cluster: &cluster,
            jobs: BTreeMap::new(),
        };
        for id in 1..40 {
            let job = facts(&mut random);
            let new = book.newcomer(&job);
            let verdicts = book.judge(&new, &|_| true).to_vec();
            for node in 0..NODES as u32 {
                let wanted = naive.verdict(&job, node);
                let got = verdicts[node as usize];
                assert_eq!(
                    got, wanted,
                    "{job:?} on n{node}: {rules:?} {:?}",
                    naive.jobs
                );
                forbidden += u32::from(got == Verdict::Forbidden);
                soft += u32::from(got == Verdict::Avoided || got == Verdict::LastResort);
            }
            if !book.matters(&new) {
                assert!(verdicts.iter().all(|v| *v == Verdict::Allowed));
            }
            let free = |n: &u32| verdicts[*n as usize] != Verdict::Forbidden;
            let mut open: Vec<u32> = (0..NODES as u32).filter(free).collect();
            for _ in 0..open.len().saturating_sub(job.nodes as usize) {
                open.remove(random.index(open.len()));
            }
            if open.len() == job.nodes as usize {
                placed += 1;
                book.start(id, &job, &open);
                naive.jobs.insert(id, (job, open));
            }
            if random.index(3) == 0 {
                let ends = 1 + random.index(id as usize) as u32;
                book.end(ends);
                naive.jobs.remove(&ends);
            }
            let running: Vec<_> = naive.jobs.iter().collect();
            for (a, (one, on)) in &running {
                for (b, (other, there)) in &running {
                    let all = on.iter().flat_map(|x| there.iter().map(move |y| (*x, *y)));
                    let bad = all
                        .filter(|_| a != b)
                        .any(|(x, y)| naive.pair((one, x), (other, y)) == Verdict::Forbidden);
                    assert!(!bad, "jobs {a} and {b}: {rules:?} {:?}", naive.jobs);
                }
            }
        }
    }
    assert!(forbidden > 1000 && soft > 1000 && placed > 1000);
}

#[test]
fn judging_allocates_nothing() {
    let mut random = Random(7);
    let cluster = tree(pairs(), 300, 10, 3);
    for _ in 0..20 {
        let rules = rules(&mut random);
        let mut book = Book::new(&rules, &cluster);
        for id in 1..200 {
            let nodes = [random.index(300) as u32, random.index(300) as u32];
            book.start(id, &facts(&mut random), &nodes);
        }
        let job = facts(&mut random);
        let before = allocations();
        let new = book.newcomer(&job);
        book.judge(&new, &|node| node % 7 != 0);
        assert_eq!(allocations(), before, "{rules:?}");
    }
}

fn error(text: &str) -> String {
    Config::parse(text, "gpuos.toml").unwrap_err().to_string()
}

#[test]
fn contradictions_and_mistakes_are_errors_with_their_place() {
    for (text, says) in [
        ("[[rule]]\n", "1:1: [[rule]] says nothing; add never-beside"),
        (
            "[[rule]]\nnever-beside = [\"a\", \"b\"]\ntenants = \"user\"\n",
            "1:1: [[rule]] has never-beside and tenants",
        ),
        (
            "[[rule]]\nnever-beside = [\"a\"]\n",
            "2:16: never-beside = a list of 1 is not accepted; write two classes",
        ),
        (
            "[[class]]\nname = \"a\"\n[[rule]]\nnever-beside = [\"a\", \"x\"]\n",
            "4:22: never-beside = \"x\" is not accepted; write a [[class]] of this file: a",
        ),
        (
            "[[rule]]\nnever-beside = [\"a\", \"b\"]\n[[rule]]\nnever-beside = [\"b\", \"a\"]\nprefer = true\n",
            "3:1: this contradicts [[rule]] 1",
        ),
        (
            "[[rule]]\ntenants = \"user\"\n[[rule]]\ntenants = \"user\"\nlevel = \"node\"\n",
            "3:1: [[rule]] 1 says the same",
        ),
        (
            "[[rule]]\ntenants = \"group\"\n",
            "2:11: tenants = \"group\" is not accepted",
        ),
        (
            "[[rule]]\ntenants = \"user\"\nlevel = \"any\"\n",
            "3:9: level = \"any\" is not accepted",
        ),
        (
            "[[reserve]]\ngangs = 4\n",
            "1:1: [[reserve]] is of so many nodes or",
        ),
        ("[[reserve]]\nnodes = 4\n", "1:1: [[reserve]] has no gangs"),
        (
            "[[reserve]]\nnodes = 4\ngangs = 1\n",
            "3:9: gangs = 1 is not accepted",
        ),
        (
            "[[reserve]]\ndomains = 1\ngangs = 2\n",
            "1:1: [[reserve]] with domains has no level",
        ),
        (
            "[[reserve]]\nnodes = 3\ngangs = 2\nlevel = \"leaf\"\n",
            "4:9: level counts domains",
        ),
        (
            "[[reserve]]\nnodes = 3\ngangs = 2\nmatch = \"n[1-2]\"\n",
            "1:1: nodes = 3, and match names only 2",
        ),
        (
            "[[reserve]]\nnodes = 3\ngangs = 2\nunless-shorter = \"1w\"\n",
            "4:18: unless-shorter = \"1w\" is not accepted; write a time",
        ),
        (
            "[[class]]\nname = \"a\"\nuser = \"u\"\n[[class]]\nname = \"b\"\nuser = \"u\"\n",
            "4:1: the jobs of class b are those of class a too",
        ),
        (
            "[[power-domain]]\nname = \"p\"\nnodes = \"n1\"\n[[power-domain]]\nname = \"q\"\nnodes = \"n[1-2]\"\n",
            "6:9: node n1 is in power domain p too",
        ),
        (
            "[[power-domain]]\nname = \"p\"\n",
            "1:1: [[power-domain]] has no nodes",
        ),
    ] {
        let said = error(text);
        assert!(
            said.starts_with(&format!("gpuos.toml:{says}")),
            "{text}\n{said}"
        );
    }
}

#[test]
fn names_that_the_cluster_lacks_are_found_with_their_place() {
    let text = "[[rule]]\ntenants = \"user\"\nlevel = \"rack\"\npartition = \"gpu\"\n\
                [[power-domain]]\nname = \"p\"\nnodes = \"n0,x9\"\n";
    let config = Config::parse(text, "f").unwrap();
    let said: Vec<String> = config
        .unknown_levels(&site())
        .iter()
        .map(|e| e.to_string())
        .collect();
    assert_eq!(
        said,
        [
            "f:3:9: this cluster has no level rack, so the rule does nothing; write one of node, \
          nvlink, leaf, spine"
        ]
    );
    let said = config.unknown_partitions(&["batch"]);
    assert_eq!(
        said[0].to_string(),
        "f:4:13: partition gpu is not in slurm.conf"
    );
    assert!(config.unknown_partitions(&["gpu"]).is_empty());
    let said = config.unknown_nodes(&["n0"]);
    assert_eq!(said[0].to_string(), "f:7:9: node x9 is not in slurm.conf");
    // Such a rule binds nobody.
    let mut book = Book::new(config.rules(), &site());
    book.start(
        1,
        &Facts {
            uid: 1,
            ..Facts::default()
        },
        &[0],
    );
    let new = book.newcomer(&Facts::default());
    assert!(
        book.judge(&new, &|_| true)
            .iter()
            .all(|v| *v == Verdict::Allowed)
    );
}

#[test]
fn every_cause_is_said_with_its_nodes() {
    let text = "[[class]]\nname = \"io\"\naccount = \"bio\"\n[[class]]\nname = \"train\"\n\
                [[rule]]\ntenants = \"account\"\nlevel = \"leaf\"\npartition = \"p\"\n\
                [[rule]]\nnever-beside = [\"io\", \"train\"]\nprefer = true\n\
                [[reserve]]\nnodes = 1\ngangs = 2\n";
    let config = Config::parse(text, "f").unwrap();
    let cluster = site();
    let mut book = Book::new(config.rules(), &cluster);
    let job = |account, partition| Facts {
        account,
        partition,
        nodes: 1,
        ..Facts::default()
    };
    book.start(3, &job("physics", "p"), &[0, 1]);
    book.start(4, &job("bio", "q"), &[7]);
    let sole = Facts {
        exclusive: Some("leaf"),
        ..job("bio", "q")
    };
    book.start(9, &sole, &[6]);
    let said = |book: &mut Book, job: Facts| -> Vec<String> {
        let new = book.newcomer(&job);
        let all = book.explain(&new, &|_| true, &|_| true);
        all.iter().map(|kept| kept.to_string()).collect()
    };
    let train = Facts {
        class: Some("train"),
        ..job("bio", "p")
    };
    assert_eq!(
        said(&mut book, train),
        [
            "n[0-2] are kept apart: account physics runs in leaf leaf0 (rule 1)",
            "n[6-8] are kept apart: job 9 has leaf leaf2 to itself",
            "n11 is a last resort: kept for gangs on 2 nodes or more (reserve 1)",
        ]
    );
    book.end(9);
    let all = said(&mut book, train);
    assert_eq!(all[2], "n7 is avoided: class io runs there (rule 2)");
    let alone = Facts {
        exclusive: Some("node"),
        nodes: 2,
        ..job("bio", "q")
    };
    assert_eq!(
        said(&mut book, alone),
        [
            "n[0-1] are kept apart: job 3 runs there, and the job wants the node to itself",
            "n7 is kept apart: job 4 runs there, and the job wants the node to itself",
        ]
    );
    for id in [3, 4] {
        book.end(id);
    }
    assert_eq!(said(&mut book, alone), [""; 0]);
}

#[test]
fn a_power_domain_at_its_limit_is_avoided_where_more_nodes_would_draw() {
    let mut kind = pairs();
    kind.figures.node_watts = 1000;
    let cluster = tree(kind, 4, 2, 2);
    let rules = Rules {
        power: vec![PowerDomain {
            name: "pdu1".into(),
            nodes: vec!["n0".into(), "n1".into(), "n2".into()],
            watts: 2500,
        }],
        ..Rules::default()
    };
    let mut book = Book::new(&rules, &cluster);
    let verdicts = |book: &mut Book| {
        let new = book.newcomer(&Facts::default());
        book.judge(&new, &|_| true).to_vec()
    };
    use Verdict::{Allowed, Avoided};
    book.start(1, &Facts::default(), &[0]);
    book.start(2, &Facts::default(), &[0]);
    assert_eq!(verdicts(&mut book), [Allowed; 4]);
    book.start(3, &Facts::default(), &[1]);
    assert_eq!(verdicts(&mut book), [Allowed, Allowed, Avoided, Allowed]);
    let new = book.newcomer(&Facts::default());
    let said = book.explain(&new, &|_| true, &|_| true);
    assert_eq!(
        said[0].to_string(),
        "n2 is avoided: power domain pdu1 cannot supply one more node"
    );
    book.end(1);
    assert_eq!(verdicts(&mut book)[2], Avoided);
    book.end(2);
    assert_eq!(verdicts(&mut book), [Allowed; 4]);
}

/// Jobs may bring any class: what is remembered of them does not grow with the jobs that have ended.
#[test]
fn names_go_with_the_last_job_that_has_them() {
    let mut random = Random(5);
    let rules = Rules {
        rules: vec![Rule {
            bond: Bond::Classes("train".into(), "serve".into()),
            level: "node".into(),
            prefer: false,
            partition: None,
        }],
        ..Rules::default()
    };
    let mut book = Book::new(&rules, &site());
    let empty = book.names_known();
    for id in 0..5000u32 {
        let class = format!("class-{id}");
        let mine = Facts {
            class: Some(&class),
            ..facts(&mut random)
        };
        book.start(id % 40, &mine, &[id % NODES as u32]);
        // Of each of forty jobs a class; and three users or accounts, two partitions.
        assert!(book.names_known() <= empty + 40 + 3 + 2);
    }
    let train = Facts {
        class: Some("train"),
        exclusive: None,
        ..facts(&mut random)
    };
    let serve = Facts {
        class: Some("serve"),
        ..train
    };
    // The same job again, and what rules name, are not forgotten.
    for _ in 0..3 {
        book.start(7, &train, &[1]);
    }
    for id in (0..40).filter(|id| *id != 7) {
        book.end(id);
    }
    let new = book.newcomer(&serve);
    let verdicts = book.judge(&new, &|_| true);
    assert_eq!(verdicts[1], Verdict::Forbidden);
    assert!((0..NODES).all(|node| node == 1 || verdicts[node] == Verdict::Allowed));
    book.end(7);
    assert_eq!(book.names_known(), empty);
}
