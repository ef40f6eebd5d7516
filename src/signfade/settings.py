"""Everything a run can be told, section by section. A TOML file has the same names.

Each field's description is its documentation: `signfade config` prints them.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from signfade._text import has_controls, printable

__all__ = [
    "DEFAULT_PRESET",
    "PRESETS",
    "PRESET_TRAINING",
    "PROTOCOLS",
    "AttackSettings",
    "AvailabilitySettings",
    "CellSettings",
    "DataSettings",
    "DefenceSettings",
    "DeviceSettings",
    "EvalSettings",
    "Fading",
    "Family",
    "Form",
    "InitialWeights",
    "MethodSettings",
    "ModelSettings",
    "PilotUse",
    "PriorKind",
    "RunSettings",
    "Schedule",
    "ServerSettings",
    "Tie",
    "method_name",
]

# The choices that the library's own functions take as well.
Fading = Literal["gaussian", "rayleigh", "rician", "none"]
Family = Literal["gaussian", "laplacian"]
Form = Literal["corrected", "published"]
InitialWeights = Literal["torch", "he", "glorot", "truncated-normal"]
PilotUse = Literal["refined", "aware", "naive"]
PriorKind = Literal["gaussian", "laplacian", "empirical"]
Schedule = Literal["constant", "sqrt"]
Tie = Literal["zero", "plus", "random"]


def _none_word(value: Any) -> Any:
    """TOML has no null: the word "none" stands for it."""
    return None if value == "none" else value


def _perfect_word(value: Any) -> Any:
    """`cell = "none"` is short for perfect links."""
    return {"perfect": True} if value == "none" else value


class _Section(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, allow_inf_nan=False)

    @model_validator(mode="after")
    def _can_be_printed(self) -> Self:
        for key, value in self:
            texts = [value] if isinstance(value, str) else value if isinstance(value, dict) else ()
            for text in texts:
                if has_controls(text):
                    raise ValueError(f"{key} must not hold control characters; got {printable(text)!r}")
        return self


class DataSettings(_Section):
    """What the devices hold."""

    name: str = Field(
        "digits",
        description="one of these, or your own as package.module:function or file.py:function, which returns "
        "a Dataset, (train_x, train_y, test_x, test_y) or two torch data sets (docs/data.md)",
    )
    folder: str | None = Field(None, description="folder with the files of idx, mnist and other fetched sets")
    standardise: bool = Field(
        False,
        description="shift and scale images and features to mean 0 and variance 1 over the training samples, "
        "channel by channel; cifar10 always is",
    )
    split: Literal["two-chunks", "iid", "dirichlet", "label-count", "natural"] = Field(
        "two-chunks",
        description="who holds what; two-chunks is the paper's, two classes per device (each class is cut "
        "into K chunks and a device takes two, so ten classes leave four fifths of the samples unused); "
        "label-count is FedAvg's, classes_per_device classes each and no sample unused; natural makes each "
        "device one of the set's own clients, drawn at random",
    )
    concentration: float = Field(0.5, gt=0, description="of the Dirichlet split; smaller is more uneven")
    classes_per_device: int = Field(2, ge=1, description="of the label-count split")
    devices: int = Field(20, ge=1, le=2**24, description="number of devices K, as far as a packet counts")
    batch: Annotated[int | None, BeforeValidator(_none_word)] = Field(
        32, ge=1, description='samples per device and gradient, at most all it has; "none" takes all'
    )
    participation: float = Field(1.0, gt=0, le=1, description="fraction of the devices asked in a round")
    samples: int = Field(100, ge=1, description="samples per device, for regression")
    size: int = Field(300, ge=1, description="number of weights M, for regression and gaussian")
    heterogeneous: bool = Field(False, description="regression: devices differ in the power of their data")
    groups: int = Field(
        1,
        ge=1,
        le=1000,
        description="device k is in group k modulo groups; each group has its own permutation of the labels "
        "(the first keeps them), in training and test",
    )
    regroup_at: Annotated[int | None, BeforeValidator(_none_word)] = Field(
        None, ge=1, description="round after which device 0 has the labels of the next group"
    )


class ModelSettings(_Section):
    """What is trained."""

    name: str = Field(
        "auto",
        description="one of these, or your own factory as package.module:function or file.py:function; it is "
        "called with (input_shape, classes) and returns a torch.nn.Module; parameters without requires_grad "
        "are frozen",
    )
    initial: InitialWeights = Field(
        "torch",
        description="how the weights of linear and convolutional layers are drawn: torch's default; he "
        "(normal) or glorot (uniform), biases zero; truncated-normal (deviation 0.1, biases 0.1)",
    )
    lora_rank: int = Field(
        0, ge=0, le=4096, description="rank of adapters on linear layers, for a frozen model; 0 is none"
    )
    lora_alpha: float = Field(
        16.0, gt=0, description="an adapter's part is multiplied by lora_alpha/lora_rank"
    )
    lora_targets: list[str] = Field(
        ["*"], description='which linear layers get an adapter: patterns of names such as "*.query"'
    )
    trained: list[str] = Field(
        [],
        description='parameters trained in full where the rest is frozen: patterns of names such as "head.*"',
    )
    personal: list[str] = Field(
        [],
        description="layers that stay on their device (FedPer): trained there with device.learning_rate, "
        "never sent; the beginnings of parameters' names, or head for the last layer",
    )


class CellSettings(_Section):
    """The radio between the devices and the server."""

    perfect: bool = Field(False, description="links without fading or noise")
    snr_db: float | list[float] | None = Field(
        None,
        description="mean SNR in dB of all devices, or one per device in a list; replaces the link budget",
    )
    radius_km: float = Field(1.0, gt=0, description="users are uniform in a disc of this radius")
    carrier_mhz: float = Field(2000.0, gt=0, description="carrier frequency")
    power_dbm: float = Field(23.0, description="transmit power of a device")
    gains_db: float = Field(0.0, description="sum of the antenna gains, less losses")
    bandwidth_hz: float = Field(180e3, gt=0, description="bandwidth of one device's subchannel")
    noise_figure_db: float = Field(
        5.0,
        description="of the base station's receiver; all of kTB counts as real noise, 3 dB more than a "
        "coherent receiver of real symbols would see",
    )
    path_loss: str = Field(
        "uma",
        description="one of these (cost231 is the paper's), or your own as package.module:function or "
        "file.py:function of distances in km and a signfade.uplink.Site, which returns dB",
    )
    exponent: float = Field(3.0, gt=0, description="of the distance, for path_loss log-distance")
    shadowing_db: Annotated[float, Field(ge=0)] | Literal["auto"] = Field(
        "auto", description="deviation of log-normal shadowing; 0 is none, auto the path-loss model's"
    )
    base_m: Annotated[float, Field(gt=0)] | Literal["auto"] = Field(
        "auto", description="height of the base station's antenna; auto is the path-loss model's"
    )
    user_m: float = Field(1.5, gt=0, description="height of a device's antenna")
    city: Literal["medium", "large", "metropolitan"] = Field(
        "metropolitan", description="kind of city for the COST-231 Hata path loss"
    )
    fading: Fading = Field(
        "gaussian",
        description="gain of a link, new every round; gaussian is the paper's: real, and deeper than "
        "rayleigh (20 dB below its mean in 8 % of rounds against 1 %)",
    )
    rician_k: float = Field(4.0, ge=0, description="power of line of sight over the scattered, for rician")
    fading_correlation: float = Field(
        0.0, ge=-1, le=1, description="of a gain with that of the round before; 0 draws it anew, 1 keeps it"
    )
    doppler_hz: float | None = Field(
        None,
        ge=0,
        description="speed over wavelength; gives fading_correlation as J0(2 pi doppler_hz round_s)",
    )
    round_s: float = Field(1.0, gt=0, description="seconds from one round to the next, for doppler_hz")
    antennas: int = Field(
        1, ge=1, le=1024, description="of the base station, fading independently; maximum-ratio combining"
    )
    power_control: Literal["full", "fractional"] = Field(
        "full",
        description="full: all send at power_dbm; fractional: as LTE and NR, p0_dbm + alpha * loss, at most "
        "power_dbm",
    )
    p0_dbm: float = Field(-85.0, description="power at the base station that alpha = 1 aims at")
    alpha: float = Field(0.8, ge=0, le=1, description="part of the loss that fractional makes up for")
    scheduling: Literal["random", "best-channel", "proportional-fair", "posterior"] = Field(
        "random",
        description="who sends, where data.participation asks for a part: random; best-channel, of highest "
        "SNR; proportional-fair, of highest rate over its own average; posterior, whose bits are expected to "
        "reduce the error of the estimate most",
    )
    downlink: Literal["error_free", "coded"] = Field(
        "error_free",
        description="how the model gets to the devices: error_free, or coded at downlink_rate: a device that "
        "cannot decode it misses the round",
    )
    downlink_rate: float = Field(0.5, gt=0, le=16, description="of the broadcast, in bit/s/Hz, for coded")
    base_dbm: float = Field(
        43.0, description="transmit power of the base station, shared by the subchannels of all devices"
    )
    modulation: Literal["bpsk", "qpsk"] = Field(
        "bpsk", description="bpsk: one bit per symbol; qpsk: two, which share the symbol's power"
    )
    side_info: Literal["error_free", "coded"] = Field(
        "error_free",
        description="how means and scales arrive: error_free, as the paper assumes, or coded: as one polar "
        "codeword per device over the same fading link",
    )
    code_rate: float = Field(
        0.25, gt=0, le=1, description="bits of the scalars and their check over coded bits, for coded"
    )
    code_length: Annotated[int | None, BeforeValidator(_none_word)] = Field(
        None, ge=1, le=16384, description="coded bits of a codeword; replaces code_rate"
    )
    code_check: Literal[6, 11, 16, 24] = Field(
        24, description="bits of the codeword's check; with 6, a word beyond repair passes too often"
    )
    code_list: Literal[1, 2, 4, 8, 16, 32] = Field(8, description="paths that the decoder keeps")
    outage: Literal["last", "drop"] = Field(
        "last",
        description="a device whose codeword is lost: last takes its last scalars, drawn towards those of "
        "the devices decoded in this round; drop leaves the device out of the sum",
    )
    outage_decay: float = Field(
        0.9, ge=0, le=1, description="weight of last scalars after one round, its square after two, and so on"
    )
    csi: Literal["perfect", "pilot"] = Field(
        "perfect", description="the server's knowledge of gains: perfect, or estimated from pilots"
    )
    pilots: int = Field(4, ge=1, le=4096, description="known symbols that a device sends ahead, for pilot")
    csi_error: PilotUse = Field(
        "refined",
        description="what becomes of the estimate's error, for pilot: naive ignores it, aware counts it as "
        "noise, refined learns the gain's magnitude from the signals too",
    )
    noise: Literal["estimated", "known"] = Field(
        "estimated", description="noise variances: estimated from the signals, or known, for pilot"
    )
    access: Literal["orthogonal", "over_the_air"] = Field(
        "orthogonal",
        description="orthogonal: one subchannel per device; over_the_air: all devices at once on one, "
        "their signs added up by the air",
    )
    precoding: Literal["inversion", "phase"] = Field(
        "inversion",
        description="over_the_air: with inversion all arrive equally strong and the weakest stay silent; "
        "with phase all send at full power",
    )
    inversion_db: Annotated[float | None, BeforeValidator(_none_word)] = Field(
        None, ge=-100, le=100, description="SNR in dB that inversion aims at; chosen each round by default"
    )
    repeats: int = Field(1, ge=1, description="how often each sign is sent, for over_the_air")
    papr_db: Annotated[float | None, BeforeValidator(_none_word)] = Field(
        8.0, ge=0.1, le=40, description='peak over mean power of amplitudes in dB; "none" for no limit'
    )

    @model_validator(mode="after")
    def _consistent(self) -> CellSettings:
        if self.perfect:
            for key, plain in (("csi", "perfect"), ("side_info", "error_free"), ("access", "orthogonal")):
                if getattr(self, key) != plain:
                    raise ValueError(f'{key} must be "{plain}" over perfect links, where nothing is in doubt')
            for key, plain in (("scheduling", "random"), ("downlink", "error_free")):
                if getattr(self, key) != plain:
                    raise ValueError(f'{key} must be "{plain}" over perfect links, which are all alike')
        if self.power_control != "full" and not self.placed:
            raise ValueError(
                'power_control must be "full" without a link budget, whose losses it makes up for'
            )
        if self.doppler_hz is not None and self.fading_correlation != 0:
            raise ValueError("fading_correlation must be 0 where doppler_hz is given, which decides it")
        if self.fading == "none" and (self.fading_correlation != 0 or self.doppler_hz is not None):
            raise ValueError('fading must not be "none" with fading_correlation or doppler_hz')
        if self.antennas > 1 and self.csi == "pilot":
            raise ValueError("antennas must be 1 with pilots, which estimate one gain per device")
        if self.access == "over_the_air":
            if self.antennas > 1:
                raise ValueError("antennas must be 1 with over_the_air: combining needs devices one by one")
            if self.power_control != "full":
                raise ValueError(
                    'power_control must be "full" with over_the_air, where precoding sets powers'
                )
        if self.csi == "pilot" and self.access == "over_the_air":
            raise ValueError(
                'csi must be "perfect" with over_the_air: devices must know their gains to align'
            )
        if self.csi == "pilot" and self.modulation == "qpsk" and self.fading in ("rayleigh", "rician"):
            raise ValueError(
                f'modulation must be "bpsk" with pilots and {self.fading} fading: a phase that is only '
                "estimated would mix the two bits of a symbol"
            )
        return self

    @property
    def placed(self) -> bool:
        """Whether devices stand somewhere: their SNRs come from a link budget."""
        return not self.perfect and self.snr_db is None


class MethodSettings(_Section):
    """What a device sends and how the server reads it."""

    preset: Annotated[str | None, BeforeValidator(_none_word)] = Field(
        None,
        description="paper (as published), corrected, rotated-sbfl, best, or low-rate (a hundredth of a bit "
        "per weight, 30 local steps); best if no aggregator is named either; keys you set yourself win",
    )
    aggregator: str = Field(
        "sbfl", description="one of these, or your own rule as package.module:function or file.py:function"
    )
    compressor: str = Field(
        "auto",
        description="what devices send: auto (one bit per weight, the numbers in full with ideal), or, with "
        "aggregator ideal, qsgd, topk, ef-sign, drive, eden (docs/rivals.md) or your own compressor as "
        "package.module:function or file.py:function; its messages arrive without errors",
    )
    tie: Tie = Field(
        "zero",
        description="signsgd's vote where as many devices say +1 as say -1: zero (no step, as torch.sign), "
        "plus (+1, as a single bit) or random (a coin for each weight and round); a downlink of signs sends "
        "zero as +1",
    )
    prior: PriorKind = Field(
        "gaussian",
        description="family behind the scale a device sends; empirical sends mean|g - mean| itself",
    )
    form: Form = Field(
        "corrected",
        description="published: Algorithms 1 and 2 as printed, tanh(2l) in place of tanh(l) and center false",
    )
    center: bool = Field(
        True,
        description="a bit is sign(g - mean), as the posterior mean needs; false: sign(g), as the paper "
        "prints, which is steadier on gradients that are not rotated; true unless form is published",
    )
    scales: Literal["device", "layer"] = Field(
        "device", description="one mean and scale per device or per layer"
    )
    side_bits: Annotated[int | None, BeforeValidator(_none_word)] = Field(
        None, ge=1, le=16, description='bits per scalar, in an adaptive range; "none" sends 32-bit floats'
    )
    weights: Literal["mean", "sum", "share"] = Field(
        "mean",
        description="the server steps along the mean of the devices' gradients, so that its learning rate "
        "does not depend on their number; sum: along their sum, as in the paper; share: weighted by N_k/N",
    )
    rotation: Literal["none", "shared", "private", "auto"] = Field(
        "none",
        description="rotate gradients first, which makes the Gaussian prior true: shared (all devices "
        "alike), private (each device in its own way, so that errors of devices that agree average out), "
        "auto (each round the one with the smaller predicted error)",
    )
    bits_per_weight: float | Literal["analog"] = Field(
        1.0,
        description="the rate dial: 0.001 to 1 sends the signs of a random subset of the rotated weights, "
        "2, 3 or 4 sends Lloyd-Max levels, analog sends amplitudes; also what qsgd, topk and eden may send",
    )
    joint: Literal["linear", "soft", "ep", "factor"] = Field(
        "linear",
        description="how bfl combines the devices: linear (signals), soft (soft bits, closer), ep "
        "(almost exact, slower), factor (devices that share one direction)",
    )
    correlation: Literal["learned", "genie"] = Field(
        "learned",
        description="bfl's correlation between devices: learned from what is received, or told by a genie",
    )
    debias: bool = Field(False, description="divide by the known shrinkage, so that steps suit all SNRs")
    error_feedback: float = Field(
        0.0,
        ge=0,
        le=1,
        description="part of what its bits lost that a device adds to its next gradient, 0 is none, 1 all; "
        "it helps at steps below about 0.2/L, L being the smoothness of the loss",
    )
    sign_noise: float = Field(
        0.0, ge=0, le=100, description="deviation of noise added before the signs, over the gradient's"
    )
    flip: float = Field(
        0.0,
        ge=0,
        lt=0.5,
        description="probability with which a device flips each bit for privacy; a bit's epsilon is "
        "ln((1 - flip)/flip); means and scales are not covered",
    )

    @model_validator(mode="before")
    @classmethod
    def _apply_preset(cls, values: Any) -> Any:
        if isinstance(values, dict) and (name := _none_word(values.get("preset"))) is not None:
            if name not in PRESETS:
                raise ValueError(f"preset must be one of {', '.join(PRESETS)}; got {name!r}")
            values = {**PRESETS[name], **values}
        if isinstance(values, dict) and values.get("form") == "published":
            values = {"center": False, **values}
        return values

    @model_validator(mode="after")
    def _consistent(self) -> MethodSettings:
        rate = self.bits_per_weight
        if rate != "analog" and not (0.001 <= rate <= 1 or rate in (2, 3, 4)):
            raise ValueError(f"bits_per_weight must be from 0.001 to 1, or 2, 3, 4 or analog; got {rate:g}")
        for key in ("error_feedback", "sign_noise", "flip"):
            if self.dialled and getattr(self, key) > 0:
                raise ValueError(
                    f"{key} must be 0 with private rotations or bits_per_weight other than 1; set "
                    'rotation = "shared" and bits_per_weight = 1'
                )
        if self.sign_noise > 0 and not self.center:
            raise ValueError(
                "center must be true with sign_noise, whose scale is that of signs about the mean"
            )
        return self

    @property
    def dialled(self) -> bool:
        """Whether devices send anything but one sign about the mean for each coordinate, rotated alike."""
        return self.rotation in ("private", "auto") or self.bits_per_weight != 1

    @property
    def soft(self) -> bool:
        """Whether the server adds up soft values: private rotations, levels and amplitudes."""
        return self.rotation in ("private", "auto") or self.level_bits != 1

    @property
    def part(self) -> float:
        """Part of the coordinates that is sent."""
        return 1.0 if self.bits_per_weight == "analog" else min(1.0, self.bits_per_weight)

    @property
    def level_bits(self) -> int | None:
        """Bits for each coordinate that is sent; None for amplitudes."""
        return None if self.bits_per_weight == "analog" else max(1, int(self.bits_per_weight))

    @property
    def family(self) -> Family:
        """Prior of a coordinate, as theory sees it: Gaussian unless the devices say Laplacian."""
        return "laplacian" if self.prior == "laplacian" else "gaussian"


PRESETS: dict[str, dict[str, Any]] = {
    "paper": {"aggregator": "sbfl", "form": "published", "center": False, "weights": "sum"},
    "corrected": {"aggregator": "sbfl", "form": "corrected", "center": True, "weights": "sum"},
    "rotated-sbfl": {"aggregator": "sbfl", "rotation": "shared"},
    "best": {"aggregator": "bfl", "rotation": "shared", "joint": "soft", "debias": True},
    "low-rate": {
        "aggregator": "bfl",
        "rotation": "private",
        "joint": "soft",
        "debias": True,
        "bits_per_weight": 0.01,
        "side_bits": 4,
    },
}
# What some presets say besides: few bits call for long local training and small steps of the server.
PRESET_TRAINING: dict[str, dict[str, dict[str, Any]]] = {
    "low-rate": {
        "device": {"local_steps": 30, "learning_rate": 0.1},
        "server": {"learning_rate": 0.5, "momentum": 0.5},
    }
}
# What a protocol of the field says.
PROTOCOLS: dict[str, dict[str, dict[str, Any]]] = {
    "cross-device": {"data": {"devices": 100, "participation": 0.1}, "device": {"epochs": 10}},
}
_LENGTHS = {"local_steps", "epochs"}  # who says one of them leaves nothing to say about the other
# What a run does that names neither a preset nor an aggregator.
DEFAULT_PRESET = "best"


def method_name(method: Mapping[str, Any]) -> str:
    """Return what a method, the table of its settings, is called: its preset and what differs, or its rule.

    Example:
        >>> method_name({"aggregator": "sbfl"}), method_name({"preset": "best", "aggregator": "sbfl"})
        ('sbfl', 'best (aggregator sbfl)')
    """
    preset = _none_word(method.get("preset"))
    if preset in PRESETS and method.get("aggregator") != "ideal":  # which no other key changes
        changed = [key for key, value in PRESETS[preset].items() if method.get(key, value) != value]
        details = ", ".join(f"{key} {str(method[key]).lower()}" for key in changed)
        return f"{preset} ({details})" if changed else preset
    if (compressor := method.get("compressor", "auto")) != "auto":
        return str(compressor).rpartition(":")[2]
    turned = method.get("rotation", "none") != "none" and method.get("aggregator") != "ideal"
    return f"{'rotated-' if turned else ''}{method.get('aggregator', 'run')}"


class DeviceSettings(_Section):
    """What a device does between two messages."""

    local_steps: int = Field(
        1, ge=1, le=10_000, description="SGD steps on the device before it sends; 1 sends a gradient"
    )
    epochs: Annotated[int | None, BeforeValidator(_none_word)] = Field(
        None, ge=1, le=1000, description="passes over the device's data in place of local_steps"
    )
    learning_rate: float = Field(
        0.1, gt=0, description="of the local steps; unused where one gradient is sent"
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="of the local steps, afresh in every round")
    proximal: float = Field(
        0.0, ge=0, description="FedProx: weight of the pull towards the weights that were broadcast"
    )
    control_variates: bool = Field(
        False,
        description="SCAFFOLD: correct local steps by how a device's gradients differ from all devices'; no "
        "uplink bits, but the downlink carries a second model",
    )

    @property
    def trains(self) -> bool:
        """Whether devices make local steps rather than send a gradient."""
        return self.local_steps > 1 or self.epochs is not None

    @property
    def summed(self) -> float:
        """Gradients in the sum of E steps, `sum_i (1 - beta**i)/(1 - beta)`: E without momentum."""
        beta, steps = self.momentum, self.local_steps
        return (steps - beta * (1 - beta**steps) / (1 - beta)) / (1 - beta)

    @model_validator(mode="after")
    def _consistent(self) -> DeviceSettings:
        if self.epochs is not None and self.local_steps > 1:
            raise ValueError("local_steps must be 1 where epochs says how long a device trains")
        for key in ("momentum", "proximal", "control_variates"):
            if getattr(self, key) and not self.trains:
                raise ValueError(f"{key} needs local training; set local_steps to 2 or more, or epochs")
        return self


class AvailabilitySettings(_Section):
    """Devices that drop out, are late, or are short of power."""

    dropout: float = Field(0.0, ge=0, le=1, description="probability that a device is not received")
    late: float = Field(
        0.0, ge=0, le=1, description="probability that a device needs more than one round for its gradient"
    )
    staleness: int = Field(
        1, ge=1, le=100, description="rounds by which it is late; it sends what it began with the old weights"
    )
    limited: float = Field(0.0, ge=0, le=1, description="probability that a device sends at reduced power")
    backoff_db: float = Field(10.0, ge=0, le=100, description="by how much its power is reduced")


class AttackSettings(_Section):
    """Devices that lie."""

    kind: str = Field(
        "none", description="one of these, or your own attack as package.module:function or file.py:function"
    )
    fraction: float = Field(0.1, ge=0, le=1, description="part of the devices that attack, in all rounds")
    strength: float = Field(
        1.0, gt=0, le=1e6, description="factor on its scale; with mean-shift, scales added to its mean"
    )
    collude: bool = Field(False, description="all attackers send the same bits, for random-bits")

    @model_validator(mode="after")
    def _consistent(self) -> AttackSettings:
        if self.kind in ("scale-inflation", "scale-collusion") and self.strength == 1:
            raise ValueError(f"strength must not be 1 with {self.kind}, which would inflate nothing")
        if self.collude and self.kind != "random-bits":
            raise ValueError('collude must be false unless kind is "random-bits"')
        return self


class DefenceSettings(_Section):
    """What the server does against lies."""

    bound_scales: bool = Field(False, description="cut means and scales to what the other devices' suggest")
    reliability: bool = Field(
        False,
        description="learn round by round which devices to rely on, leave out those that mislead, and flip "
        "the signs of those that always send the opposite",
    )
    assumed: float = Field(
        0.3,
        ge=0,
        lt=0.5,
        description="part of a round's devices that krum, multi_krum and trimmed_mean take for attackers, "
        "at most what they can bear (krum: K >= 2*f + 3)",
    )


class ServerSettings(_Section):
    """What the server does with the estimate."""

    learning_rate: float = Field(
        0.6,
        gt=0,
        description="learning rate; for regression in units of 1/L; without one a vote has a default "
        "of its own, signsgd 0.01: there it is the length of a step in each weight",
    )
    momentum: float = Field(0.0, ge=0, lt=1, description="weight of past estimates, as in the paper")
    optimizer: str = Field("momentum", description="momentum, or any class of torch.optim by name, e.g. adam")
    schedule: Schedule = Field("constant", description="sqrt divides the learning rate by sqrt(t + 1)")
    averaging: float = Field(
        0.0,
        ge=0,
        lt=1,
        description="weight of the past in a running average of the models, which is what is evaluated and "
        "handed out: about the last 1/(1 - averaging) rounds, by which it lags; 0 is the newest model; it "
        "averages out noise, costs no bits and changes no step; "
        "train_loss, buffers and personal layers are those of the newest model",
    )
    downlink: Literal["full", "sign"] = Field("full", description="sign sends one bit per weight down")
    clip: Annotated[float | None, BeforeValidator(_none_word)] = Field(
        None, gt=0, description='largest norm of an estimate; "none" leaves it alone'
    )
    tasks: Literal["one", "clustered", "related", "genie"] = Field(
        "one",
        description="one model for all devices; clustered: one per cluster of devices, found from what is "
        "received; related: one per device, each drawn towards those of related devices; genie: one per "
        "group of data.groups, told",
    )
    max_clusters: int = Field(8, ge=2, le=100, description="most models that clustered may come to")
    coupling: float = Field(
        0.1, ge=0, description="related: weight of the pull between models, 0 for none, large for one model"
    )
    relations: Literal["learned", "mean"] = Field(
        "learned",
        description="related: pull towards devices whose updates agree, or, as in the mean-regularised "
        "form of MOCHA, towards the mean of all models",
    )


class EvalSettings(_Section):
    """When to evaluate the model on the test set."""

    every: int = Field(10, ge=1, description="rounds between evaluations; the last round always is one")
    at: list[int] = Field([], description="further rounds to evaluate, such as the first hundred more often")
    per_device: bool = Field(
        False,
        description="evaluate every device on the test samples of its classes, in its proportions; always "
        "so with data.groups, model.personal or server.tasks other than one",
    )
    training: bool = Field(
        False,
        description="evaluate the loss of the one model on all samples of all devices, too "
        "(global_train_loss); train_loss is of the batches that the devices train on",
    )


class RunSettings(_Section):
    """One run."""

    name: str = Field("run", min_length=1, description="what the run is called in tables and reports")
    label: str | None = Field(None, description="name of the method there; by default its preset or rule")
    seed: int = Field(0, ge=0, lt=2**63, description="of everything random in the run")
    rounds: int = Field(200, ge=1, description="number of communication rounds T")
    out: str = Field("runs", min_length=1, description="folder under which run folders are made")
    threads: int | None = Field(
        None, ge=1, le=1024, description="worker threads, all cores by default; never changes a result"
    )
    compute: Literal["cpu", "cuda", "mps"] = Field(
        "cpu",
        description="where models are trained and evaluated, and with cuda gradients are rotated and "
        "aggregated (docs/tasks.md); cuda and mps are untested on hardware and differ in the last digits",
    )
    checkpoint_every: int = Field(25, ge=1, description="rounds between two checkpoints")
    protocol: Annotated[Literal["cross-device"] | None, BeforeValidator(_none_word)] = Field(
        None,
        description="cross-device: 100 devices, 10 of them in a round, 10 local epochs; keys you set "
        "yourself win",
    )
    track: Annotated[Literal["tensorboard", "mlflow", "wandb"] | None, BeforeValidator(_none_word)] = Field(
        None, description='tracker that is told of every round, or "none"; never changes a result'
    )
    data: DataSettings = DataSettings()
    model: ModelSettings = ModelSettings()
    cell: Annotated[CellSettings, BeforeValidator(_perfect_word)] = CellSettings()
    method: MethodSettings = MethodSettings(preset=DEFAULT_PRESET)
    device: DeviceSettings = DeviceSettings()
    server: ServerSettings = ServerSettings()
    availability: AvailabilitySettings = AvailabilitySettings()
    attack: AttackSettings = AttackSettings()
    defence: DefenceSettings = DefenceSettings()
    eval: EvalSettings = EvalSettings()
    variants: dict[str, dict[str, Any]] = Field(
        default_factory=dict, description="named settings for compare: [variants.NAME] with dotted keys"
    )

    @model_validator(mode="before")
    @classmethod
    def _recommend(cls, values: Any) -> Any:
        """Take the recommended preset where no method is named, and what protocol and preset say besides."""
        method = values.get("method", {}) if isinstance(values, dict) else None
        if isinstance(method, dict) and not {"preset", "aggregator"} & method.keys():
            method = {"preset": DEFAULT_PRESET, **method}
        if not isinstance(method, dict):
            return values
        filled = {**values, "method": method} if method else values
        protocol = PROTOCOLS.get(str(values.get("protocol")), {})
        training = PRESET_TRAINING.get(str(method.get("preset")), {})
        for section, proposed in (*protocol.items(), *training.items()):
            if isinstance(given := filled.get(section, {}), dict):
                long = any(given.get(key) is not None for key in _LENGTHS)  # a null is no length
                said = given.keys() | (_LENGTHS if long else set())
                fresh = {key: value for key, value in proposed.items() if key not in said}
                filled = {**filled, section: {**fresh, **given}}
        return filled

    @model_validator(mode="after")
    def _consistent(self) -> RunSettings:
        snr = self.cell.snr_db
        if isinstance(snr, list) and len(snr) != self.data.devices:
            raise ValueError(
                f"cell.snr_db must have one entry for each of the {self.data.devices} devices; got {len(snr)}"
            )
        if self.device.control_variates:
            times = self.rounds * self.data.participation
            if times < 2:
                raise ValueError(
                    f"device.control_variates needs devices that return: with {self.rounds} rounds and "
                    f"data.participation {self.data.participation:g} a device takes part {times:g} times; "
                    "use device.proximal instead"
                )
            if self.device.epochs is not None:
                raise ValueError("device.control_variates needs device.local_steps in place of device.epochs")
        if self.data.name == "idx" and self.data.folder is None:
            raise ValueError('data.folder must name the folder of IDX files when data.name is "idx"')
        if self.server.averaging > 0 and self.server.tasks != "one":
            raise ValueError('server.averaging must be 0 unless server.tasks is "one": it averages one model')
        if self.cell.scheduling != "random" and self.data.participation == 1:
            raise ValueError(
                f'data.participation must be below 1 with cell.scheduling = "{self.cell.scheduling}", which '
                "chooses among the devices"
            )
        if self.availability.limited > 0 and self.cell.perfect:
            raise ValueError("availability.limited must be 0 over perfect links, where power does not matter")
        if self.attack.kind != "none" and int(self.data.devices * self.attack.fraction + 0.5) == 0:
            got = f"{self.attack.fraction:g} of {self.data.devices} devices"
            raise ValueError(f"attack.fraction must be at least one device; got {got}")
        # late: the registries need torch, and their modules need these settings
        from signfade.data import DATASETS
        from signfade.server.aggregators import AGGREGATORS, check_settings
        from signfade.simulation.attacks import ATTACKS
        from signfade.uplink.path_loss import PATH_LOSSES

        PATH_LOSSES.check(self.cell.path_loss)
        if (model := PATH_LOSSES.built_in(self.cell.path_loss)) and self.cell.placed:
            low, high = model.ranges.get("distance_km", (0.0, float("inf")))
            if low == 0 and self.cell.radius_km > high:
                raise ValueError(
                    f"cell.radius_km must be at most {high:g} with path_loss {self.cell.path_loss}, which "
                    f"was measured up to there; got {self.cell.radius_km:g}"
                )
        DATASETS.check(self.data.name)
        ATTACKS.check(self.attack.kind)
        check_settings(self)
        rule, given = AGGREGATORS.built_in(self.method.aggregator), self.server.model_fields_set
        if rule and rule.learning_rate and "learning_rate" not in given and self.data.name != "regression":
            values = dict(self.server) | {"learning_rate": rule.learning_rate}  # still counts as not given
            object.__setattr__(self, "server", ServerSettings.model_construct(given, **values))
        return self

    @property
    def per_device(self) -> bool:
        """Whether every device is evaluated on its own data."""
        many = self.server.tasks != "one" or self.data.groups > 1 or bool(self.model.personal)
        return many or self.eval.per_device

    @property
    def method_label(self) -> str:
        """What the method is called in tables."""
        return self.label or method_name(self.method.model_dump())
