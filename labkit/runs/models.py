"""Shapes of published transformers by name, as in the models' published configuration files."""

import re

from labkit.runs.shapes import Model


def _llama(name, layers, hidden, heads, kv_heads, ffn, vocab, **more):
    return Model(name, layers, hidden, heads, kv_heads, ffn, vocab, **more)


def _gpt(name, layers, hidden, heads, *, vocab=50257, positions=1024):
    return Model(name, layers, hidden, heads, heads, 4 * hidden, vocab, tied=True, gated=False, bias="all", positions=positions)


_TABLE = (
    _llama("Qwen2.5-0.5B", 24, 896, 14, 2, 4864, 151936, tied=True, bias="qkv"),
    _llama("Qwen2.5-1.5B", 28, 1536, 12, 2, 8960, 151936, tied=True, bias="qkv"),
    _llama("Qwen2.5-3B", 36, 2048, 16, 2, 11008, 151936, tied=True, bias="qkv"),
    _llama("Qwen2.5-7B", 28, 3584, 28, 4, 18944, 152064, bias="qkv"),
    _llama("Qwen2.5-14B", 48, 5120, 40, 8, 13824, 152064, bias="qkv"),
    _llama("Qwen2.5-32B", 64, 5120, 40, 8, 27648, 152064, bias="qkv"),
    _llama("Qwen2.5-72B", 80, 8192, 64, 8, 29568, 152064, bias="qkv"),
    _llama("Qwen3-0.6B", 28, 1024, 16, 8, 3072, 151936, head_width=128, tied=True),
    _llama("Qwen3-1.7B", 28, 2048, 16, 8, 6144, 151936, head_width=128, tied=True),
    _llama("Qwen3-4B", 36, 2560, 32, 8, 9728, 151936, head_width=128, tied=True),
    _llama("Qwen3-8B", 36, 4096, 32, 8, 12288, 151936, head_width=128),
    _llama("Qwen3-14B", 40, 5120, 40, 8, 17408, 151936, head_width=128),
    _llama("Qwen3-32B", 64, 5120, 64, 8, 25600, 151936, head_width=128),
    _llama("Qwen3-30B-A3B", 48, 2048, 32, 4, 768, 151936, head_width=128, experts=128, experts_used=8),
    _llama("Qwen3-235B-A22B", 94, 4096, 64, 4, 1536, 151936, head_width=128, experts=128, experts_used=8),
    _llama("Qwen1.5-7B", 32, 4096, 32, 32, 11008, 151936, bias="qkv"),
    _llama("Llama-1-7B", 32, 4096, 32, 32, 11008, 32000),
    _llama("Llama-1-13B", 40, 5120, 40, 40, 13824, 32000),
    _llama("Llama-1-33B", 60, 6656, 52, 52, 17920, 32000),
    _llama("Llama-1-65B", 80, 8192, 64, 64, 22016, 32000),
    _llama("Llama-2-7B", 32, 4096, 32, 32, 11008, 32000),
    _llama("Llama-2-13B", 40, 5120, 40, 40, 13824, 32000),
    _llama("Llama-2-70B", 80, 8192, 64, 8, 28672, 32000),
    _llama("CodeLlama-34B", 48, 8192, 64, 8, 22016, 32000),
    _llama("Llama-3-8B", 32, 4096, 32, 8, 14336, 128256),
    _llama("Llama-3-70B", 80, 8192, 64, 8, 28672, 128256),
    _llama("Llama-3-405B", 126, 16384, 128, 8, 53248, 128256),
    _llama("Llama-3.2-1B", 16, 2048, 32, 8, 8192, 128256, tied=True),
    _llama("Llama-3.2-3B", 28, 3072, 24, 8, 8192, 128256, tied=True),
    _llama("TinyLlama-1.1B", 22, 2048, 32, 4, 5632, 32000),
    _llama("SmolLM2-135M", 30, 576, 9, 3, 1536, 49152, tied=True),
    _llama("SmolLM2-360M", 32, 960, 15, 5, 2560, 49152, tied=True),
    _llama("SmolLM2-1.7B", 24, 2048, 32, 32, 8192, 49152, tied=True),
    _llama("Mistral-7B", 32, 4096, 32, 8, 14336, 32000),
    _llama("Mixtral-8x7B", 32, 4096, 32, 8, 14336, 32000, experts=8, experts_used=2),
    _llama("Yi-6B", 32, 4096, 32, 4, 11008, 64000),
    _llama("Yi-9B", 48, 4096, 32, 4, 11008, 64000),
    _llama("Yi-34B", 60, 7168, 56, 8, 20480, 64000),
    _llama("Baichuan2-7B", 32, 4096, 32, 32, 11008, 125696),
    _llama("Baichuan2-13B", 40, 5120, 40, 40, 13696, 125696),
    _llama("Baichuan-7B", 32, 4096, 32, 32, 11008, 64000),
    _llama("InternLM2-7B", 32, 4096, 32, 8, 14336, 92544),
    _llama("DeepSeek-7B", 30, 4096, 32, 32, 11008, 102400),
    _llama("Gemma-2B", 18, 2048, 8, 1, 16384, 256000, head_width=256, tied=True),
    _llama("Gemma-7B", 28, 3072, 16, 16, 24576, 256000, head_width=256, tied=True),
    _llama("Gemma-2-2B", 26, 2304, 8, 4, 9216, 256000, head_width=256, tied=True),
    _llama("Gemma-2-9B", 42, 3584, 16, 8, 14336, 256000, head_width=256, tied=True),
    _llama("Gemma-2-27B", 46, 4608, 32, 16, 36864, 256000, head_width=128, tied=True),
    _llama("Phi-3-mini", 32, 3072, 32, 32, 8192, 32064),
    _llama("Phi-4", 40, 5120, 40, 10, 17920, 100352),
    Model("Phi-2", 32, 2560, 32, 32, 10240, 51200, gated=False, bias="all"),
    Model("Falcon-7B", 32, 4544, 71, 1, 18176, 65024, tied=True, gated=False),
    Model("OPT-1.3B", 24, 2048, 32, 32, 8192, 50272, tied=True, gated=False, bias="all", positions=2050),
    Model("OPT-6.7B", 32, 4096, 32, 32, 16384, 50272, tied=True, gated=False, bias="all", positions=2050),
    Model("OPT-13B", 40, 5120, 40, 40, 20480, 50272, tied=True, gated=False, bias="all", positions=2050),
    Model("Pythia-1.4B", 24, 2048, 16, 16, 8192, 50304, gated=False, bias="all"),
    Model("Pythia-6.9B", 32, 4096, 32, 32, 16384, 50432, gated=False, bias="all"),
    Model("GPT-J-6B", 28, 4096, 16, 16, 16384, 50400, gated=False),
    Model("GPT-NeoX-20B", 44, 6144, 64, 64, 24576, 50432, gated=False, bias="all"),
    _gpt("GPT-2-124M", 12, 768, 12),
    _gpt("GPT-2-355M", 24, 1024, 16),
    _gpt("GPT-2-774M", 36, 1280, 20),
    _gpt("GPT-2-1.5B", 48, 1600, 25),
    _gpt("GPT-3-1.3B", 24, 2048, 16, positions=2048),
    _gpt("GPT-3-2.7B", 32, 2560, 32, positions=2048),
    _gpt("GPT-3-6.7B", 32, 4096, 32, positions=2048),
    _gpt("GPT-3-13B", 40, 5120, 40, positions=2048),
    _gpt("GPT-3-175B", 96, 12288, 96, positions=2048),
    Model("BERT-base", 12, 768, 12, 12, 3072, 30522, tied=True, gated=False, bias="all", positions=512, causal=False),
    Model("BERT-large", 24, 1024, 16, 16, 4096, 30522, tied=True, gated=False, bias="all", positions=512, causal=False),
)
MODELS = {model.name: model for model in _TABLE}

# Other writings of a name, as regular expressions over the name without case and punctuation (but with "." kept).
_ALIASES = (
    (r"llama-?3\.[13]-?", "llama3"),
    (r"qwen2-?(?=\d)", "qwen2.5"),
    (r"^llama-?(?=\d+b)", "llama1"),
    (r"llama-?30b", "llama133b"),
    (r"(codellama|vicuna|alpaca)-?(?=7b|13b)", "llama2"),
    (r"gpt-?2-?(xl|1542m|1558m)", "gpt21.5b "),
    (r"gpt-?2-?(large|762m)", "gpt2774m "),
    (r"gpt-?2-?(medium|345m|350m)", "gpt2355m "),
    (r"gpt-?2-?(small|117m|125m)?(?![\d.])|nanogpt", "gpt2124m "),
    (r"^tinyllama", "tinyllama1.1b"),
    (r"mistral(?!7b|\d)", "mistral7b"),
    (r"mixtral(?!8x)", "mixtral8x7b"),
    (r"phi-?3(?!\d)", "phi3mini "),
)


def find(text: str) -> Model | None:
    """Returns the model that the text names, whatever is written round the name; None for an unknown one.

    Spaces, case and punctuation don't matter: "LLaMA 2 7b (full fine-tune)" is Llama-2-7B.
    """
    plain = re.sub(r"[^a-z0-9.]", "", text.lower().replace("meta", ""))
    others = (re.sub(old, new, plain, count=1) for old, new in _ALIASES)
    return next(filter(None, map(_named, (plain, *others))), None)


def _named(plain):
    """The model with the longest name in the text: 7b is not in 27b, and 1.5b not in 11.5b."""
    for known in sorted(_PLAIN, key=len, reverse=True):
        if re.search(rf"{re.escape(known)}(?!\d)", plain):
            return _PLAIN[known]
    return None


_PLAIN = {re.sub(r"[^a-z0-9.]", "", name.lower()): model for name, model in MODELS.items()}
