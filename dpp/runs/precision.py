"""Which precision trains best on this machine."""

import torch

INSTRUCTIONS = {
    "AVX512-BF16": torch.cpu._is_avx512_bf16_supported,
    "AMX": torch.cpu._is_amx_tile_supported,
}


def bfloat16_pays(device: str | torch.device = "cpu") -> tuple[bool, str]:
    """Whether autocast to bfloat16 is quicker than float32, and why.

    On a CPU it takes instructions for bfloat16 products (AVX512-BF16 or AMX); without them, each
    value is converted to float32 and back.

    Returns:
        (True or False, one line that says why).
    """
    if torch.device(device).type == "cuda":
        has = torch.cuda.is_bf16_supported(including_emulation=False)
        return has, f"the GPU has {'' if has else 'no '}bfloat16 instructions"
    has = [name for name, asked in INSTRUCTIONS.items() if asked()]
    if has:
        return True, f"the processor has {' and '.join(has)}"
    return False, f"the processor has neither {' nor '.join(INSTRUCTIONS)}: float32 is quicker"


def choose_precision(precision: str, device: str | torch.device = "cpu") -> str:
    """What an experiment's precision means on a device: `auto` is bfloat16 where that pays."""
    if precision != "auto":
        return precision
    return "bfloat16" if bfloat16_pays(device)[0] else "float32"
