"""Bodies in the plainest form, ids in and ids out, for tests of what is done around them."""

from dataclasses import dataclass

from tinyinfer.errors import BadRequest


class PlainDialect:
    def read(self, url, body):
        known = {"prompt", "prompts", "n", "max_tokens", "temperature", "seed"}
        if not body.keys() <= known:
            raise BadRequest(f"unknown: {sorted(body.keys() - known)}")
        prompts = body.get("prompts") or [body["prompt"]]
        return Plain(prompts, {name: value for name, value in body.items() if not name.startswith("prompt")})

    def error(self, error):
        return 400, {"error": {"message": str(error)}}


@dataclass
class Plain:
    prompts: list
    how: dict

    def add(self, engine):
        ids = [engine.add(prompt, **self.how) for prompt in self.prompts]
        return [(id, index) for id in ids for index in range(self.how.get("n", 1))]

    def body(self, completions):
        return {"ids": [completion.ids for completion in completions]}
