"""One process reads the prompt, another goes on: keys and values are handed over as bytes.

    python examples/hand_over.py [MODEL]

Reading a prompt fills the processor, writing an answer waits for memory: large services give each to machines of its
own. Here the first process runs the prompt and sends what it has computed down a pipe to the second.
"""

import subprocess
import sys

import tinyinfer

MODEL = sys.argv[1] if len(sys.argv) > 1 else "smollm2-135m-instruct"
PROMPT = "The capital of France is Paris. The capital of Italy is Rome. The capital of Spain is"


def read() -> bytes:
    """Run the prompt, and give what was computed."""
    llm = tinyinfer.load(MODEL)
    session = llm.session()
    done = session.generate(PROMPT, max_tokens=1, temperature=0)
    print(f"the first process ran {done.timings.prompt_tokens} tokens; what follows should begin with {done.text!r}")
    return llm.export_cache(session)


def write(content: bytes) -> None:
    """Go on from there."""
    llm = tinyinfer.load(MODEL)
    done = llm.import_cache(content).generate(PROMPT, max_tokens=8, temperature=0)
    print(
        f"the second had {done.timings.cached_tokens} of {done.timings.prompt_tokens} already, and says {done.text!r}"
    )


if __name__ == "__main__":
    if sys.argv[2:] == ["--go-on"]:
        write(sys.stdin.buffer.read())
    else:
        subprocess.run([sys.executable, __file__, MODEL, "--go-on"], input=read(), check=True)
