"""Shows gateways and dashboards the load, by the names that SGLang gives to its metrics."""

from typing import TYPE_CHECKING

from hotreload.feature import Feature

if TYPE_CHECKING:
    from hotreload.parts import FeatureParts, Given


def _begin(given: "Given") -> "FeatureParts":
    from hotreload.features.gateway.page import GatewayPage
    from hotreload.parts import FeatureParts

    page = GatewayPage(given.entrance, model_name=given.settings().model_name)
    return FeatureParts(listeners=[page], report=page)


GATEWAY_FEATURE = Feature(name="gateway", begin=_begin)
