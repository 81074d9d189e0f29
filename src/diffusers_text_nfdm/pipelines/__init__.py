from .pipeline_nfdm_text import NFDMTextPipeline, NFDMTextPipelineOutput


__all__ = ["NFDMTextPipeline", "NFDMTextPipelineOutput"]
