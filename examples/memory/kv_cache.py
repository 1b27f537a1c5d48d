# SPDX-License-Identifier: MIT OR Apache-2.0
"""A cache of keys and values that is larger than the GPU's memory: what a server of language models keeps of its conversations.

    python3 kv_cache.py                   in host memory, without a GPU
    python3 kv_cache.py --device=0        on a GPU

Each conversation has its blocks in one object. To answer, a conversation acquires its blocks, appends a token's keys and values to the last, and releases them;
the next one is prefetched meanwhile. Conversations that end are advised cold, and the prompt that all begin with stays hot. A checksum over all that was
written tells at the end that nothing was lost.
"""

import argparse
import hashlib
import random

from gpuos import memory

MIB = 1 << 20
BLOCK = 2 * MIB
# Bytes that one token's keys and values take: 32 layers, 8 heads of 128, two bytes each, twice.
TOKEN = 32 * 8 * 128 * 2 * 2


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--device", type=int, help="a GPU's number; without it host memory takes its place")
    parser.add_argument("--conversations", type=int, default=12)
    parser.add_argument("--blocks", type=int, default=4, help="blocks of 2 MiB for each")
    parser.add_argument("--hbm", type=int, default=16, help="MiB of GPU memory")
    parser.add_argument("--turns", type=int, default=100)
    given = parser.parse_args()
    size = given.blocks * BLOCK
    tokens = [0] * given.conversations
    wanted = [hashlib.sha256() for _ in tokens]
    pick = random.Random(1)

    with memory.open(device=given.device, hbm=given.hbm * MIB, host=given.conversations * size + given.hbm * MIB) as mem:
        prompt = mem.alloc(BLOCK)
        prompt.advise("hot")
        caches = [mem.alloc(size) for _ in tokens]
        order = [pick.randrange(len(caches)) for _ in range(given.turns)]
        for turn, which in enumerate(order):
            cache, at = caches[which], tokens[which] * TOKEN
            if at + TOKEN > size:
                cache.advise("cold")
                continue
            if turn + 1 < len(order):
                caches[order[turn + 1]].prefetch()
            new = pick.randbytes(TOKEN)
            # All that the conversation has is read, and its end is written.
            with prompt.acquire(), cache.acquire(0, at + TOKEN):
                cache.write(new, at)
            wanted[which].update(new)
            tokens[which] += 1
        for cache, count, digest in zip(caches, tokens, wanted):
            seen = hashlib.sha256(cache.read(0, count * TOKEN)) if count else hashlib.sha256()
            if seen.digest() != digest.digest():
                raise SystemExit("a conversation has other bytes than were written")
        stats = mem.stats()
    whole = (given.conversations * size + BLOCK) // MIB
    print(f"{whole} MiB of cache in {stats['hbm_limit'] // MIB} MiB: {sum(tokens)} tokens, {stats['hits']} extents were there, "
          f"{stats['brought']} came in ({stats['ahead']} in advance), {stats['copied']} left with a copy and {stats['dropped']} without")


if __name__ == "__main__":
    main()
