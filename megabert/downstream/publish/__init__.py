"""An exported model for others: model hub, scores on cards, ONNX, sentence modules, merged weights."""
