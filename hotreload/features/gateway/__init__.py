"""Shows gateways and dashboards the load, by the names that SGLang gives to its metrics."""

from hotreload.feature import Feature, FeatureParts, Given


def _begin(given: Given) -> FeatureParts:
    from hotreload.features.gateway.page import GatewayPage

    page = GatewayPage(given.entrance, model_name=given.settings().model_name)
    return FeatureParts(listeners=[page], report=page)


GATEWAY_FEATURE = Feature(name="gateway", begin=_begin)
