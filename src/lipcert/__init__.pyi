# The public names of lipcert. ``__init__.py`` reads this file, so that each name is listed here and nowhere else.

from . import layers as layers
from . import losses as losses
from . import testing as testing
from .algebra import bounds as bounds
from .attacks.attack import attack as attack
from .certified.certify import output_interval as output_interval
from .certified.filtered import FilteredClassifier as FilteredClassifier
from .certified.freeze import freeze as freeze
from .certified.freeze import register_rule as register_rule
from .certified.radius import certified_radii as certified_radii
from .certifiers.methods import audit as audit
from .certifiers.methods import certify as certify
from .data.registry import load_data as load_data
from .errors import NotCertified as NotCertified
from .exporters.export import export as export
from .exporters.hub import CertifiedModel as CertifiedModel
from .layers.contract import lipschitz_bound as lipschitz_bound
from .layers.forms import AffineConv1d as AffineConv1d
from .layers.forms import AffineConv2d as AffineConv2d
from .layers.forms import AffineConv3d as AffineConv3d
from .layers.forms import AffineConvTranspose2d as AffineConvTranspose2d
from .layers.forms import AffineLinear as AffineLinear
from .layers.forms import GeneralConv2d as GeneralConv2d
from .layers.forms import GeneralLinear as GeneralLinear
from .layers.forms import OrthogonalConv2d as OrthogonalConv2d
from .layers.forms import OrthogonalLinear as OrthogonalLinear
from .layers.forms import OrthogonalResidualConv2d as OrthogonalResidualConv2d
from .layers.forms import ResidualConv1d as ResidualConv1d
from .layers.forms import ResidualConv2d as ResidualConv2d
from .layers.forms import ResidualConv3d as ResidualConv3d
from .layers.forms import ResidualLinear as ResidualLinear
from .layers.forms import SandwichConv2d as SandwichConv2d
from .layers.forms import SandwichLinear as SandwichLinear
from .layers.head import NormalizedHead as NormalizedHead
from .layers.parametrize import parametrize as parametrize
from .models.build import create_model as create_model
from .models.presets import list_models as list_models
from .models.presets import register_model as register_model
from .runs import Run as Run
from .runs import load as load
from .runs import train as train
from .runs import verify as verify
from .training.config import TrainConfig as TrainConfig

__version__: str
